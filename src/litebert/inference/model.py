"""A model that answers."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from litebert.data.batches import Batch, Example, batches_by_length, collate
from litebert.data.tables import TableOptions
from litebert.device import uses_bf16_for_inference
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference.early_exit import EarlyExitPolicy, early_exit_policy, early_scores
from litebert.inference.pipeline import copy_to_cpu, delay_by_one, map_ahead
from litebert.interop.huggingface import Folder, save_folder
from litebert.model import Albert, AlbertConfig, Encoder
from litebert.model.backends import enable_fp8
from litebert.model.backends.cuda_graphs import is_launch_bound
from litebert.model.backends.int8 import disable_int8, is_int8
from litebert.model.backends.native import NativeInt8Backend
from litebert.model.backends.onednn_int8 import ActivationRanges
from litebert.model.sentence_head import SentenceHead, SentenceMap, unit
from litebert.search.index import Index
from litebert.search.knn import Hit, search_vectors
from litebert.tasks import Mask, Task
from litebert.tasks.base import Scores, sentence_vectors
from litebert.tasks.mask import Fill, Filled, Score, fill_iteratively, score_texts
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.core import check_texts

BATCH_SIZE = 32
GPU_BATCH_TOKENS = 1 << 15
LENGTH_MULTIPLE = 16
"""On a GPU the length of a batch is rounded up to this."""
MIN_LENGTH_RATIO = 2 / 3
"""On a CPU, of the shortest to the longest text of a batch: shorter ones would mostly be padding."""
TOKENIZER_BATCH = {"cpu": 1024, "cuda": 8192}
"""Texts that are tokenized, then sorted by length into batches; the next ones meanwhile."""


class Model:
    """An ALBERT encoder with its tokenizer and, if it was trained for one, its task."""

    def __init__(
        self,
        albert: Albert,
        tokenizer: Tokenizer | None,
        task: Task[Any, Any] | None = None,
        max_length: int | None = None,
        sentence_map: SentenceMap | None = None,
    ) -> None:
        self.albert = albert
        self._tokenizer = tokenizer
        self.task = task
        """What it was trained for; None for a bare encoder."""
        self.max_length = max_length or albert.config.max_position_embeddings
        """Texts are truncated to this many tokens: the length it was trained with, or its positions."""
        if sentence_map is not None:
            self.sentence_map = sentence_map
        self.source: str | Path | None = None
        """The name or the folder it was loaded from."""
        self.int8: ActivationRanges | None = None
        """Of a model saved in int8: the calibrated input ranges of its matrix products, empty where unknown."""
        self.exits: EarlyExitPolicy | None = None
        """Early exit of a classifier: the depths and the threshold."""
        self.stopped_after: Counter[int] = Counter()
        """With early exit: the number of sequences by the passes they took."""
        self.bf16 = False
        """Compute in bfloat16; weights and answers stay float32."""

    def __repr__(self) -> str:
        task = "no task" if self.task is None else self.task.name
        parameters = sum(p.numel() for p in self.albert.parameters())
        kernel = "native kernel" if isinstance(self.encoder.backend, NativeInt8Backend) else "oneDNN"
        int8 = f", int8 ({kernel})" if self.answers_in_int8 else ""
        return f"Model({task}, {parameters:,} parameters, texts of up to {self.max_length} tokens{int8})"

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        if self._tokenizer is None:
            raise CheckpointError(
                f"{self.source or 'this model'}: has no tokenizer (tokenizer.json, spiece.model or vocab.txt) and "
                "reads no text; put the one it was trained with into its folder, or call model.encoder on token ids"
            )
        return self._tokenizer

    @property
    def sentence_map(self) -> SentenceMap | None:
        """How `embed` makes a vector: the pooling and the linear map after it; None = the mean of the tokens."""
        if SentenceHead.name not in self.albert.heads:
            return None
        head: Any = self.albert.heads[SentenceHead.name]
        return head.as_map()

    @sentence_map.setter
    def sentence_map(self, sentence_map: SentenceMap | None) -> None:
        heads = {name: head for name, head in self.albert.heads.items() if name != SentenceHead.name}
        if sentence_map is not None:
            heads[SentenceHead.name] = SentenceHead(sentence_map).to(self.device).requires_grad_(False).eval()
        self.albert = self.albert.with_heads(heads)  # a new one: other models may share the encoder

    @property
    def after(self) -> SentenceMap | None:
        """The former name of `sentence_map`."""
        warnings.warn("Model.after is now called Model.sentence_map", DeprecationWarning, stacklevel=2)
        return self.sentence_map

    @after.setter
    def after(self, sentence_map: SentenceMap | None) -> None:
        warnings.warn("Model.after is now called Model.sentence_map", DeprecationWarning, stacklevel=2)
        self.sentence_map = sentence_map

    @property
    def dimensions(self) -> int:
        """The size of its vectors."""
        heads: Any = self.albert.heads
        return heads[SentenceHead.name].linear.out_features if SentenceHead.name in heads else self.config.hidden_size

    @property
    def encoder(self) -> Encoder:
        """`encoder(input_ids, attention_mask=None, token_type_ids=None)` gives a (batch, length, hidden) tensor."""
        return self.albert.encoder

    @property
    def config(self) -> AlbertConfig:
        """The configuration of the encoder."""
        return self.albert.config

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.encoder.word_embeddings.weight.device

    @property
    def passes(self) -> int:
        """How often the layer is applied. Fewer passes are faster; `litebert distill --elastic` trains for them."""
        return self.encoder.checked_depth(self.encoder.depth)

    @passes.setter
    def passes(self, count: int) -> None:
        self.encoder.depth = self.checked_passes(count)

    def checked_passes(self, count: int) -> int:
        """The count, if the model can answer after so many passes."""
        if self.task is not None and self.task.has_fixed_depths and count != self.config.num_hidden_layers:
            raise ConfigError(f"passes={count}: {self.task.name} reads at depths of its own choice; leave it out")
        return self.encoder.checked_depth(count)

    def set_speed(self, speed: float) -> None:
        """Early exit: texts take 1 / speed of the passes on average; 1 turns it off."""
        self.exits = early_exit_policy(self.task, self.passes, speed)
        self.stopped_after.clear()

    def configure(self, precision: str = "auto", passes: int | None = None, speed: float = 1.0) -> None:
        """Set the precision, the number of passes and early exit, as the flags of the commands say."""
        if passes is not None:
            most = self.config.num_hidden_layers
            if not 1 <= passes <= most:
                raise ConfigError(f"passes={passes} must lie between 1 and the {most} that the model was trained with")
            self.passes = passes
        if speed != 1:
            self.set_speed(speed)
        self.bf16 = uses_bf16_for_inference(precision, self.device)
        enable_fp8(self.encoder.eval(), precision == "fp8")

    @property
    def answers_in_int8(self) -> bool:
        """Whether it computes in int8; such a model cannot be trained."""
        return is_int8(self.encoder)

    def encoder_fingerprint(self) -> str:
        """SHA-256 of the encoder's weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def embedding_fingerprint(self) -> str:
        """SHA-256 of all that decides what `embed` returns: the weights, the passes, the pooling, the linear map, the
        vocabulary and the maximum length."""
        digest = hashlib.sha256(self.encoder_fingerprint().encode())
        digest.update(f"{self.tokenizer.fingerprint} {self.max_length} {self.passes}".encode())
        sentence_map = self.sentence_map
        if sentence_map is not None:
            digest.update(f"{sentence_map.pooling} {sentence_map.passes}".encode())
            for part in (sentence_map.weight, sentence_map.bias, sentence_map.tokens):
                digest.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    def to(self, device: str | torch.device) -> Model:
        """Move it, as in `load(name).to("cuda")`, and return it. int8 is for CPUs; elsewhere the same weights are used
        in float32."""
        self.albert.to(device)
        if self.device.type != "cpu" and self.answers_in_int8:
            disable_int8(self.encoder)
        return self

    def save(self, path: str | Path, half: bool = False) -> None:
        """Write a folder that litebert, transformers and sentence-transformers load; `half`: weights in bfloat16."""
        parts = (self.albert, self._tokenizer, self.task, self.max_length, self.sentence_map, self.int8)
        save_folder(Path(path), Folder(*parts), half)

    def embed(self, texts: Sequence[str], batch_size: int | None = None) -> np.ndarray:
        """One vector per text, float32."""
        if isinstance(texts, str):
            raise DataError("embed takes a list; wrap a single text: embed([text])")
        tokenizer = self.tokenizer

        def tokenize(chunk: Sequence[str]) -> list[Example]:
            return [Example([encoding]) for encoding in tokenizer.encode(chunk, max_length=self.max_length)]

        texts = list(texts)
        check_texts(texts)
        vectors, done = np.empty((len(texts), self.dimensions), dtype=np.float32), 0
        with closing(map_ahead(tokenize, texts, self._tokenizer_batch(batch_size))) as chunks:
            for examples in chunks:
                vectors[done : done + len(examples)] = self.embed_examples(examples, batch_size)
                done += len(examples)
        return vectors

    def embed_examples(self, examples: Sequence[Example], batch_size: int | None = None) -> np.ndarray:
        """`embed` for tokenized texts, one sequence each."""
        vectors = np.zeros((len(examples), self.dimensions), dtype=np.float32)
        with self.answering(), torch.inference_mode():
            batches = self._batches(examples, batch_size)
            started = (
                (indices, copy_to_cpu({"vectors": sentence_vectors(self.albert, batch)})) for indices, batch in batches
            )
            for indices, wait in delay_by_one(started):
                vectors[indices] = wait()["vectors"].numpy()
        return vectors

    def similarity(self, a: str | Sequence[str], b: str | Sequence[str]) -> Any:
        """The cosine of the vectors of two texts; of two lists, a float32 matrix."""
        left, right = ([texts] if isinstance(texts, str) else list(texts) for texts in (a, b))
        vectors = unit(self.embed([*left, *right]))
        cosines = (vectors[: len(left)] @ vectors[len(left) :].T).clip(-1, 1)
        return float(cosines[0, 0]) if isinstance(a, str) and isinstance(b, str) else cosines

    def search(self, queries: Sequence[str], corpus: Sequence[str] | Path, top: int = 10) -> list[list[Hit]]:
        """The texts nearest in meaning to each query, best first. `corpus`: texts, or the folder of an index that
        `litebert search` made."""
        if isinstance(queries, str) or isinstance(corpus, str):
            raise DataError("search takes lists, or for the corpus the Path of an index; wrap a single text: [text]")
        if isinstance(corpus, Path):
            return Index.open(corpus).search(self, queries, top)
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        return search_vectors(self.embed(queries), self.embed(corpus), corpus, top)

    def predict(self, inputs: Sequence[Any], batch_size: int | None = None) -> list[Any]:
        """One answer per input: a string, a pair, or a mapping of column names to values."""
        if isinstance(inputs, str):
            raise DataError("predict takes a list; wrap a single text: predict([text])")
        return self.answer_records(
            [self.parse(item, f"input {number}") for number, item in enumerate(inputs, start=1)], batch_size
        )

    def parse(self, item: Any, where: str) -> Any:
        """The task's record of one input; `where` names it in errors."""
        return self._required_task().parse(item, where)

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        """Position and content of each input in a file."""
        return self._required_task().items_of(path, options)

    def answer_records(self, records: Sequence[Any], batch_size: int | None = None) -> list[Any]:
        """`predict` for records that `parse` returned."""
        return self._answer(self._required_task(), records, batch_size)

    def fill_mask(self, text: str, top: int = 5) -> list[Fill] | list[list[Fill]]:
        """The likeliest tokens for the mask in a text; a list per mask if there are several."""
        self._require_mask_head()
        if top < 1:
            raise ConfigError(f"top={top} must be at least 1")
        task = Mask(top)
        masks = self._answer(task, [task.parse(text, "text")], 1)[0].masks
        return masks[0] if len(masks) == 1 else masks

    def fill(self, text: str, rounds: int | None = None, temperature: float = 0.0, seed: int = 0) -> Filled:
        """Fill all masks of a text, the most confident first, in `rounds` forward passes (by default one per mask).

        At temperature 0 the likeliest token is taken; above 0 tokens are sampled with the seed.
        """
        self._require_mask_head()
        if rounds is not None and rounds < 1:
            raise ConfigError(f"rounds={rounds} must be at least 1; leave it out for one per mask")
        if not 0 <= temperature < float("inf"):
            raise ConfigError(f"temperature={temperature} must be 0 or more; 1 samples from the model's probabilities")
        task = Mask()
        record = task.parse(text, "text")
        example = task.features([record], self.tokenizer, self.max_length)[0]
        with self.answering():
            generator = torch.Generator().manual_seed(seed)
            return fill_iteratively(self.albert, record, example, rounds, temperature, generator)

    def score(self, texts: Sequence[str], batch_size: int = BATCH_SIZE) -> list[Score]:
        """The pseudo-log-likelihood of each text: every token is predicted from all the others."""
        self._require_mask_head()
        if isinstance(texts, str):
            raise DataError("score takes a list; wrap a single text: score([text])")
        _check_batch_size(batch_size)
        with self.answering():
            return score_texts(self.albert, self.tokenizer, texts, self.max_length, batch_size)

    def _require_mask_head(self) -> None:
        if Mask.head_name not in self.albert.heads:
            raise ConfigError("this model has no masked-token head (fine-tuning drops it); load the pre-trained model")

    def _required_task(self) -> Task[Any, Any]:
        if self.task is None:
            raise ConfigError("this model is a bare encoder without a task; train one with: litebert finetune")
        return self.task

    def _answer(self, task: Task[Any, Any], records: Sequence[Any], batch_size: int | None) -> list[Any]:
        tokenizer = self.tokenizer

        def tokenize(chunk: Sequence[Any]) -> tuple[Sequence[Any], list[Example]]:
            return chunk, task.features(chunk, tokenizer, self.max_length) if chunk else []

        with closing(map_ahead(tokenize, records, self._tokenizer_batch(batch_size))) as chunks:
            return [
                task.answer(record, example, scores)
                for chunk, examples in chunks
                for record, example, scores in zip(
                    chunk, examples, self.score_examples(task, examples, batch_size), strict=True
                )
            ]

    def _tokenizer_batch(self, batch_size: int | None) -> int:
        return max(TOKENIZER_BATCH.get(self.device.type, TOKENIZER_BATCH["cpu"]), batch_size or 0)

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        """The head's scores of a batch, with early exit if it is on."""
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
        """The head's scores of every example, on the CPU. `advance` is called with the number of finished sequences.

        All sequences are batched by length, whatever example they belong to, so that a text of any length fits. A
        batch holds `batch_size`, or by default 32, and on a GPU up to 32,768 tokens.
        """
        owners = [(number, row) for number, example in enumerate(examples) for row in range(len(example.sequences))]
        sequences = [_single_sequence(examples[number], row) for number, row in owners]
        rows: list[Scores] = [{}] * len(owners)
        with self.answering(), torch.inference_mode():
            batches = self._batches(sequences, batch_size)
            started = ((indices, copy_to_cpu(self.batch_scores(task, batch))) for indices, batch in batches)
            for indices, wait in delay_by_one(started):
                scores = {name: _as_float32(values) for name, values in wait().items()}
                for row, index in enumerate(indices):
                    # a copy: a view would keep the whole batch in memory
                    rows[index] = {name: values[row].clone() for name, values in scores.items()}
                advance(len(indices))
        by_example: list[list[Scores]] = [[] for _ in examples]
        for (number, _), row_scores in zip(owners, rows, strict=True):
            by_example[number].append(row_scores)
        return [{name: _stack([row[name] for row in own]) for name in own[0]} for own in by_example]

    def _batches(self, examples: Sequence[Example], batch_size: int | None) -> Iterator[tuple[list[int], Batch]]:
        """Batches of similar length, on the model's device."""
        _check_batch_size(batch_size)
        min_length_ratio, pad_id = 0.0, self.tokenizer.pad_id
        if batch_size is None and self.device.type != "cuda":
            batch_size, min_length_ratio = BATCH_SIZE, MIN_LENGTH_RATIO
        lengths = [example.length for example in examples]
        for indices in batches_by_length(lengths, batch_size, GPU_BATCH_TOKENS, min_length_ratio):
            batch = [examples[index] for index in indices]
            yield indices, collate(batch, pad_id, self._columns(batch)).to(self.device)

    def _columns(self, examples: Sequence[Example]) -> int | None:
        """On a GPU, the length rounded up, so that few shapes repeat (`backends/cuda_graphs.py`)."""
        if self.device.type != "cuda":
            return None
        longest = max(example.length for example in examples)
        rounded = min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self.config.max_position_embeddings)
        small = is_launch_bound(self.config, rounded * len(examples), self.config.num_hidden_layers)
        return max(longest, rounded) if small else None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Evaluation mode and the model's precision; afterwards modules train again that did before."""
        training = [module for module in self.albert.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.bf16)):
                yield
        finally:
            for module in training:
                module.training = True


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")


def _as_float32(values: Tensor) -> Tensor:
    """Scores in float32; ids stay."""
    return values.float() if values.is_floating_point() else values


def _single_sequence(example: Example, row: int) -> Example:
    """One sequence of an example, with its target only if it is the only one."""
    if len(example.sequences) == 1:
        return example
    return Example([example.sequences[row]], states=None if example.states is None else [example.states[row]])


def _stack(rows: Sequence[Tensor]) -> Tensor:
    """Rows as one tensor, padded with 0."""
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
