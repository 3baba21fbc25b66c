"""A model that answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch, Example, batches_by_length, collate
from litebert.data.tables import TableOptions
from litebert.errors import ConfigError, DataError
from litebert.inference.early_exit import Exits, early_scores, exits_for
from litebert.interop.huggingface import Folder, save_folder
from litebert.model import Albert, AlbertConfig, Encoder
from litebert.model.backends.cuda_graphs import is_small
from litebert.model.backends.int8 import disable_int8, is_int8
from litebert.model.backends.onednn_int8 import ActivationRanges
from litebert.model.sentence_head import SentenceHead, SentenceMap, unit
from litebert.search.knn import Hit, hits_among
from litebert.tasks import Mask, Task
from litebert.tasks.base import Scores, vectors_of
from litebert.tasks.mask import Fill, Filled, Score, fill_in_rounds, score_texts
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.core import check_texts

COLUMN_MULTIPLE = 16
BATCH_SIZE = 32
ALIKE = 2 / 3
"""On a CPU, of the longest text of a batch: shorter ones would mostly be padding."""
GPU_TOKENS = 1 << 15  # at once
TOKENISED = {"cpu": 1024, "cuda": 8192}
"""Texts that are tokenised at once, the next of them while these are computed; among them those of like length meet."""

S = TypeVar("S")
T = TypeVar("T")


class Model:
    """An ALBERT with its tokenizer and, if it was taught one, its task."""

    def __init__(
        self,
        albert: Albert,
        tokenizer: Tokenizer,
        task: Task[Any, Any] | None = None,
        max_length: int | None = None,
        after: SentenceMap | None = None,
    ) -> None:
        self.albert = albert
        self.tokenizer = tokenizer
        """Text to ids and back."""
        self.task = task
        """What it was taught; None for a bare encoder."""
        self.max_length = max_length or albert.config.max_position_embeddings
        """Texts are cut to this many tokens: the length the model was trained on, or what its positions allow."""
        if after is not None:
            self.after = after
        self.source: str | Path | None = None
        """The name or the folder it was loaded from."""
        self.int8: ActivationRanges | None = None
        """Saved in eight bits; between what the inputs of its products lie, empty where that is not known."""
        self.exits: Exits | None = None
        """Whether, and when, a text whose class is clear needs no further passes; for classifiers."""
        self.stopped_after: Counter[int] = Counter()
        """How many sequences were answered so, by the number of their passes."""
        self.bf16 = False
        """Compute in bfloat16: on a GPU several times as fast. Weights and answers stay float32."""

    def __repr__(self) -> str:
        task = "no task" if self.task is None else self.task.name
        parameters = sum(p.numel() for p in self.albert.parameters())
        by = "oneDNN" if self.encoder.run_all is None else "native code"
        eight = f", in eight bits by {by}" if self.answers_in_int8 else ""
        return f"Model({task}, {parameters:,} parameters, texts of up to {self.max_length} tokens{eight})"

    @property
    def after(self) -> SentenceMap | None:
        """How `embed` makes vectors: what it pools, and what it sends that through; None = the mean of the tokens."""
        if SentenceHead.name not in self.albert.heads:
            return None
        head: Any = self.albert.heads[SentenceHead.name]
        return head.as_map()

    @after.setter
    def after(self, made: SentenceMap | None) -> None:
        heads = {name: head for name, head in self.albert.heads.items() if name != SentenceHead.name}
        if made is not None:
            heads[SentenceHead.name] = SentenceHead(made).to(self.device).requires_grad_(False).eval()
        self.albert = self.albert.with_heads(heads)  # others may have the same encoder and another head

    @property
    def dimensions(self) -> int:
        """How many numbers its vectors have."""
        heads: Any = self.albert.heads
        return heads[SentenceHead.name].linear.out_features if SentenceHead.name in heads else self.config.hidden_size

    @property
    def encoder(self) -> Encoder:
        """`encoder(input_ids, attention_mask=None, token_type_ids=None)` gives a (batch, length, hidden) tensor."""
        return self.albert.encoder

    @property
    def config(self) -> AlbertConfig:
        """The shape of the encoder: sizes, number of passes, what is shared."""
        return self.albert.config

    @property
    def device(self) -> torch.device:
        """Where its weights are, and where it computes."""
        return self.encoder.word_embeddings.weight.device

    @property
    def passes(self) -> int:
        """How often the layer is run for an answer. Fewer are faster; `litebert distill --elastic` teaches them."""
        return self.encoder.checked_depth(self.encoder.depth)

    @passes.setter
    def passes(self, count: int) -> None:
        self.encoder.depth = self.checked_passes(count)

    def checked_passes(self, count: int) -> int:
        """As given; what cannot be answered after is refused."""
        if self.task is not None and self.task.own_depths and count != self.config.num_hidden_layers:
            raise ConfigError(f"passes={count}: {self.task.name} reads at depths that it has learned; leave it out")
        return self.encoder.checked_depth(count)

    def set_speed(self, speed: float) -> None:
        """Let texts whose class is clear stop early, so that they take 1 / speed of the passes on the average."""
        self.exits = exits_for(self.task, self.passes, speed)
        self.stopped_after.clear()

    @property
    def answers_in_int8(self) -> bool:
        """Does it compute from eight bits, and so learn nothing?"""
        return is_int8(self.encoder)

    def to(self, device: str | torch.device) -> Model:
        """Move it, as in `load(name).to("cuda")`, and return it. From eight bits only CPUs compute; elsewhere the same
        weights are used in float32."""
        self.albert.to(device)
        if self.device.type != "cpu" and self.answers_in_int8:
            disable_int8(self.encoder)  # whose products are a CPU's
        return self

    def save(self, path: str | Path, half: bool = False) -> None:
        """Write a folder that litebert, transformers and sentence-transformers load; `half`: weights in bfloat16."""
        parts = (self.albert, self.tokenizer, self.task, self.max_length, self.after, self.int8)
        save_folder(Path(path), Folder(*parts), half)

    def embed(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """One vector per text, float32: what `after` makes of its tokens' hidden states."""
        if isinstance(texts, str):
            raise DataError("embed takes a list; wrap a single text: embed([text])")

        def examples_of(some: Sequence[str]) -> list[Example]:
            return [Example([one]) for one in self.tokenizer.encode(some, max_length=self.max_length)]

        texts = list(texts)
        check_texts(texts)
        vectors, done = np.empty((len(texts), self.dimensions), dtype=np.float32), 0
        with closing(_ahead(examples_of, texts, self._part(batch_size))) as parts:
            for some in parts:
                vectors[done : done + len(some)] = self.embed_examples(some, batch_size)
                done += len(some)
        return vectors

    def embed_examples(self, examples: Sequence[Example], batch_size: int | None = None) -> np.ndarray:
        """`embed` for texts as the model reads them, one sequence each."""
        vectors = np.zeros((len(examples), self.dimensions), dtype=np.float32)
        with self.answering(), torch.inference_mode():
            batches = self._batches(examples, batch_size)
            begun = ((indices, _sent({"vectors": vectors_of(self.albert, batch)})) for indices, batch in batches)
            for indices, arrived in _one_behind(begun):
                vectors[indices] = arrived()["vectors"].numpy()
        return vectors

    def similarity(self, a: str | Sequence[str], b: str | Sequence[str]) -> Any:
        """The cosine of the vectors of two texts; of two lists, a float32 array of all with all."""
        left, right = ([one] if isinstance(one, str) else list(one) for one in (a, b))
        vectors = unit(self.embed([*left, *right]))
        found = (vectors[: len(left)] @ vectors[len(left) :].T).clip(-1, 1)
        return float(found[0, 0]) if isinstance(a, str) and isinstance(b, str) else found

    def search(self, queries: Sequence[str], corpus: Sequence[str] | Path, top: int = 10) -> list[list[Hit]]:
        """For each query the texts that are nearest to it in meaning, best first; `corpus` are texts, or the folder of
        an index that `litebert search` made."""
        if isinstance(queries, str) or isinstance(corpus, str):
            raise DataError("search takes lists, or for the corpus the Path of an index; wrap a single text: [text]")
        if isinstance(corpus, Path):
            from litebert.search.index import Index

            return Index.open(corpus).search(self, queries, top)
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        return hits_among(self.embed(queries), self.embed(corpus), corpus, top)

    def predict(self, inputs: Sequence[Any], batch_size: int | None = None) -> list[Any]:
        """One answer per input. An input is a string, a pair, or a mapping with the columns' names."""
        if isinstance(inputs, str):
            raise DataError("predict takes a list; wrap a single text: predict([text])")
        return self.answer_records(
            [self.parse(item, f"input {number}") for number, item in enumerate(inputs, start=1)], batch_size
        )

    def parse(self, item: Any, where: str) -> Any:
        """The task's input record for what a user gives; `where` names it in errors."""
        return self._task().parse(item, where)

    def items_of(self, path: Path, source: TableOptions) -> Iterator[tuple[str, Any]]:
        """Where it stands and what it is, for all that a file asks of this model's task."""
        return self._task().items_of(path, source)

    def answer_records(self, records: Sequence[Any], batch_size: int | None = None) -> list[Any]:
        """`predict` for input records."""
        return self._answers(self._task(), records, batch_size)

    def fill_mask(self, text: str, top: int = 5) -> list[Fill] | list[list[Fill]]:
        """The likeliest words for the mask in a text; a list per mask if there are several."""
        self._require_mask_head()
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        task = Mask(top)
        masks = self._answers(task, [task.parse(text, "text")], 1)[0].masks
        return masks[0] if len(masks) == 1 else masks

    def fill(self, text: str, rounds: int | None = None, temperature: float = 0.0, seed: int = 0) -> Filled:
        """Fill all masks of a text, the surest first, asking again after each: once per mask, or `rounds` times.

        At temperature 0 the likeliest token is taken; above, one is drawn by the seed, more freely the higher it is.
        """
        self._require_mask_head()
        if rounds is not None and rounds < 1:
            raise ConfigError(f"rounds={rounds} must be at least 1; leave it out to ask once per mask")
        if not 0 <= temperature < float("inf"):
            raise ConfigError(f"temperature={temperature} must be 0 or more; 1 draws as the model's probabilities say")
        task = Mask()
        record = task.parse(text, "text")
        example = task.features([record], self.tokenizer, self.max_length)[0]
        with self.answering():
            generator = torch.Generator().manual_seed(seed)
            return fill_in_rounds(self.albert, record, example, rounds, temperature, generator)

    def score(self, texts: Sequence[str], batch_size: int = BATCH_SIZE) -> list[Score]:
        """How likely each text is: the model guesses every token from all the others (pseudo-log-likelihood)."""
        self._require_mask_head()
        if isinstance(texts, str):
            raise DataError("score takes a list; wrap a single text: score([text])")
        _check_batch_size(batch_size)
        with self.answering():
            return score_texts(self.albert, self.tokenizer, texts, self.max_length, batch_size)

    def _require_mask_head(self) -> None:
        if Mask.head_name not in self.albert.heads:
            raise ConfigError("this model has no masked-token head (fine-tuning drops it); load the pre-trained model")

    def _task(self) -> Task[Any, Any]:
        if self.task is None:
            raise ConfigError("this model is a bare encoder and answers nothing yet; teach it with: litebert finetune")
        return self.task

    def _answers(self, task: Task[Any, Any], records: Sequence[Any], batch_size: int | None) -> list[Any]:
        def read(some: Sequence[Any]) -> tuple[Sequence[Any], list[Example]]:
            return some, task.features(some, self.tokenizer, self.max_length) if some else []

        with closing(_ahead(read, records, self._part(batch_size))) as parts:
            return [
                task.answer(*three)
                for some, examples in parts
                for three in zip(some, examples, self.score_examples(task, examples, batch_size), strict=True)
            ]

    def _part(self, batch_size: int | None) -> int:
        """How many texts are tokenised at once."""
        return max(TOKENISED.get(self.device.type, TOKENISED["cpu"]), batch_size or 0)

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        if self.exits is None:
            return task.scores(self.albert, batch)
        scores, passes = early_scores(self.albert, task, batch, self.exits)
        self.stopped_after.update(passes.tolist())
        return scores

    def score_examples(
        self,
        task: Task[Any, Any],
        examples: Sequence[Example],
        batch_size: int | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[Scores]:
        """What the task's head says of every example, on the CPU. `advance` hears how many sequences are done.

        Sequences go in batches of similar length, wherever they belong, so that a text of any length fits: of
        `batch_size`, or by default of 32, and on a GPU of as many as make 32,768 tokens.
        """
        owners = [(number, row) for number, example in enumerate(examples) for row in range(len(example.sequences))]
        alone = [_alone(examples[number], row) for number, row in owners]
        rows: list[Scores] = [{}] * len(owners)
        with self.answering(), torch.inference_mode():
            batches = self._batches(alone, batch_size)
            begun = ((indices, _sent(self.batch_scores(task, batch))) for indices, batch in batches)
            for indices, arrived in _one_behind(begun):
                scores = {name: _whole(values) for name, values in arrived().items()}
                for at, index in enumerate(indices):
                    # a copy: a view would keep the whole batch in memory
                    rows[index] = {name: values[at].clone() for name, values in scores.items()}
                advance(len(indices))
        found: list[list[Scores]] = [[] for _ in examples]
        for (number, _), row in zip(owners, rows, strict=True):
            found[number].append(row)
        return [{name: _stacked([row[name] for row in some]) for name in some[0]} for some in found]

    def _batches(self, examples: Sequence[Example], batch_size: int | None) -> Iterator[tuple[list[int], Batch]]:
        """Batches of similar length, on the model's device."""
        _check_batch_size(batch_size)
        alike = 0.0
        if batch_size is None and self.device.type != "cuda":
            batch_size, alike = BATCH_SIZE, ALIKE
        for indices in batches_by_length([example.length for example in examples], batch_size, GPU_TOKENS, alike):
            some = [examples[i] for i in indices]
            yield indices, collate(some, self.tokenizer.pad_id, self._columns(some)).to(self.device)

    def _columns(self, examples: Sequence[Example]) -> int | None:
        """On a GPU lengths are rounded up, so that few shapes come again and again (`backends/cuda_graphs.py`)."""
        if self.device.type != "cuda":
            return None
        longest = max(example.length for example in examples)
        rounded = min(-(-longest // COLUMN_MULTIPLE) * COLUMN_MULTIPLE, self.config.max_position_embeddings)
        small = is_small(self.config, rounded * len(examples), self.config.num_hidden_layers)
        return max(longest, rounded) if small else None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Without dropout, whatever the model was doing before."""
        learning = [module for module in self.albert.modules() if module.training]
        for module in learning:
            module.training = False
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.bf16)):
                yield
        finally:
            for module in learning:
                module.training = True


def _sent(values: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
    """On their way to the CPU; call it to have them there."""
    there = {name: one.to("cpu", non_blocking=one.is_cuda) for name, one in values.items()}
    gpu = next((one.device for one in values.values() if one.is_cuda), None)
    copied = None if gpu is None else torch.cuda.current_stream(gpu).record_event()

    def arrived() -> Mapping[str, Tensor]:
        if copied is not None:
            copied.synchronize()
        return there

    return arrived


def _one_behind(items: Iterator[T]) -> Iterator[T]:
    """Each when the next has been begun: a GPU has work while the host makes a batch, and while it reads answers."""
    for before, _ in pairwise(chain(items, [None])):
        assert before is not None
        yield before


def _ahead(make: Callable[[Sequence[S]], T], items: Sequence[S], size: int) -> Generator[T, None, None]:
    """What is made of every part of the items, the next one by another thread while one is used. Close it, and the
    thread is gone."""
    if len(items) <= size:
        yield make(items)
        return
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(1, "tokenise") as worker:
        coming = worker.submit(make, parts[0])
        for part in parts[1:]:
            made, coming = coming.result(), worker.submit(make, part)
            yield made
        yield coming.result()


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")


def _whole(values: Tensor) -> Tensor:
    """In float32, if they are not ids."""
    return values.float() if values.is_floating_point() else values


def _alone(example: Example, row: int) -> Example:
    """One sequence of an example; its target only where it belongs to that sequence alone."""
    if len(example.sequences) == 1:
        return example
    return Example([example.sequences[row]], states=None if example.states is None else [example.states[row]])


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows as one tensor; those of shorter sequences are filled up with 0."""
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
