"""Translation: an encoder, and a decoder with a vocabulary of its own.

 Shapes: S sequences, L columns of the source, T tokens
of the target, V its vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import IGNORE_INDEX, Batch, Example
from litebert.data.sentence_chunks import POSSIBLE_BOUNDARY, are_single_sentences, split_into_chunks
from litebert.data.tables import TableOptions, rename_columns
from litebert.data.translation_pairs import (
    find_target_file,
    is_line_aligned,
    read_aligned_lines,
    read_pairs,
    source_and_target,
)
from litebert.errors import CheckpointError, ConfigError, DataError, require_extra
from litebert.model import Albert, AlbertConfig, HeadKind
from litebert.model.beam_search import BeamSearch, StepDecoder, search
from litebert.model.decoder import Decoder, DecoderConfig, check_integer
from litebert.tasks.base import Judgement, Scores, TrainableTask, saved_options, states_after, symmetric_divergence
from litebert.tasks.translation_scores import corpus_scores, join_sentences, metric_signatures
from litebert.tokenizer import Tokenizer
from litebert.tokenizer.training import train_unigram

TARGET_FOLDER = "target"
"""Of the target vocabulary, in the model's folder."""
CONTINUATION = "##"
"""The prefix of tokens that continue a word, in WordPiece vocabularies."""
MAX_TARGET_TOKENS = 512  # longer translations are not trained on


@dataclass(frozen=True, slots=True)
class TranslateInput:
    """A text, and its translation if it is known."""

    source: str
    target: str | None = None
    where: str = field(default="", compare=False, repr=False)
    """The file and line it came from, for errors."""

    @property
    def place(self) -> str:
        return self.where or repr(self.source[:40])


@dataclass(frozen=True, slots=True)
class TranslateOutput:
    """The translation, its likelihood, and the unknown characters of the source."""

    translation: str
    log_likelihood: float
    """The mean log-likelihood of its tokens."""
    unknown: list[str]
    """Characters of the source that are not in the encoder's vocabulary."""


@dataclass(frozen=True)
class SourceParts:
    """How a text was split."""

    parts: list[str]
    """The text of each sequence."""
    lines: list[int]
    """The line of each part."""
    unknown: list[str]


class Translate(TrainableTask[TranslateInput, TranslateOutput]):
    """A text longer than the training data, or of more sentences or lines, is split, and its parts are translated
    independently."""

    name = "translate"
    architecture = "LitebertForTranslation"
    head_name = "translate"
    metric = "bleu"
    min_epochs = 20
    has_fixed_depths = True
    head_learning_rate_factor = 10.0  # the decoder starts untrained beside a pre-trained encoder

    def __init__(
        self,
        shape: Mapping[str, Any],
        search_settings: BeamSearch,
        target: Tokenizer | None = None,
        longest: int | None = None,
        by_sentence: bool = False,
        label_smoothing: float = 0.1,
    ) -> None:
        self.shape = dict(shape)
        """The `DecoderConfig` of the decoder; without depths, `head_depths` chooses them."""
        self._target = target
        self.label_smoothing, self.search = label_smoothing, search_settings
        self.validating = False
        """Greedy search: faster, and as good for comparing epochs."""
        self.longest = longest
        """Tokens of the longest text in the training data."""
        self.by_sentence = by_sentence
        """Whether the training data was single sentences: longer texts are then translated by sentence."""
        self.left_out: list[str] = []

    @property
    def target(self) -> Tokenizer:
        assert self._target is not None, "the target vocabulary is loaded with the folder"
        return self._target

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Translate:
        options = saved_options(settings)
        try:
            search_settings = BeamSearch(**options["search"])
            longest, shape = options.get("longest"), dict(options["decoder"])
            if longest is not None:
                check_integer("longest", longest)
            DecoderConfig(**shape | {"depths": tuple(shape["depths"])})
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"config.json has invalid settings of the decoder ({error}); save it again"
            ) from error
        return cls(shape, search_settings, longest=longest, by_sentence=bool(options.get("by_sentence", False)))

    def settings(self) -> dict[str, Any]:
        return {}

    def options(self) -> dict[str, Any]:
        return {
            "decoder": self.shape,
            "search": asdict(self.search),
            "longest": self.longest,
            "by_sentence": self.by_sentence,
        }

    def save_extra_files(self, folder: Path) -> None:
        self.target.save(folder / TARGET_FOLDER)

    def load_extra_files(self, folder: Path) -> None:
        self._target = Tokenizer.load(folder / TARGET_FOLDER)
        if self._target.vocab_size > self.shape["vocab_size"]:
            raise CheckpointError(
                f"{folder / TARGET_FOLDER}: has {self._target.vocab_size} tokens and the decoder only "
                f"{self.shape['vocab_size']}; they do not belong together"
            )

    def head_depths(self, config: AlbertConfig) -> tuple[int, ...]:
        """After each third of the passes by default: early states represent words, late ones sentences."""
        chosen = tuple(self.shape.get("depths") or ())
        passes = config.num_hidden_layers
        depths = chosen or tuple(sorted({max(1, round(passes * third / 3)) for third in (1, 2, 3)}))
        if max(depths) > passes or min(depths) < 0:
            raise ConfigError(f"decoder_depths={depths} must lie between 0 and the encoder's {passes} passes")
        return depths

    def head(self, config: AlbertConfig) -> nn.Module:
        made = DecoderConfig(**self.shape | {"depths": self.head_depths(config)})
        self.shape = made.to_dict()
        return Decoder(made, config.hidden_size)

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[TranslateInput]:
        options = options or TableOptions()
        records = []
        for where, values in read_pairs(path, options):
            try:
                records.append(_labelled_record(values, where))
            except DataError as error:
                options.skip_or_raise(error)
        return records

    @classmethod
    def input_files(cls, path: Path, options: TableOptions) -> list[Path]:
        return [path, find_target_file(path, options)] if is_line_aligned(path) else [path]

    @classmethod
    def learn_from(cls, inputs: Sequence[TranslateInput], head: HeadKind = "linear", **options: Any) -> Translate:
        """The target vocabulary is the one in the folder `target_tokenizer`, or is trained. The options are the
        settings of `litebert finetune` for translation."""
        require_extra("sacrebleu", "train")  # fail at the start, not after the first epoch
        if options.get("target_tokenizer") is not None:
            target = Tokenizer.load(options["target_tokenizer"])
        else:
            texts = [record.target for record in inputs if record.target]
            target = train_unigram(texts, options["target_vocab_size"], lowercase=False, strip_accents=False)
        target.warn_unknown = False  # `remarks` says how many it concerns
        shape = {"vocab_size": target.vocab_size} | {
            name.removeprefix("decoder_"): value for name, value in options.items() if name.startswith("decoder_")
        }
        DecoderConfig(**shape | {"depths": (0,)})  # validates the settings
        smoothing = {name: value for name, value in options.items() if name == "label_smoothing"}
        task = cls(shape, BeamSearch(options["beams"], options["length_penalty"]), target, **smoothing)
        task.validating = True
        return task

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        if not is_line_aligned(path):
            yield from super().items_of(path, options)
            return
        for number, line in enumerate(read_aligned_lines(path), start=1):
            yield f"{path}, line {number}", line

    def parse(self, item: Any, where: str) -> TranslateInput:
        """A string, or a mapping with `source` (or `text`) and perhaps `target`."""
        if isinstance(item, str):
            return TranslateInput(item, where=where)
        if not isinstance(item, Mapping):
            raise DataError(f"{where}: {str(item)[:40]!r} must be a string, or an object with 'source'")
        return _record(source_and_target(rename_columns(item, pairs=False)), where)

    def features(self, inputs: Sequence[TranslateInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        longest = max_length if self.longest is None else max(8, min(self.longest, max_length))
        examples = []
        for record, whole in zip(inputs, tokenizer.encode([record.source for record in inputs]), strict=True):
            unknown = [
                record.source[start:end]
                for number, (start, end) in zip(whole.ids, whole.offsets, strict=True)
                if number == tokenizer.unk_id and end > start
            ] if tokenizer.unk_id in whole.ids else []  # fmt: skip
            several = self.by_sentence and POSSIBLE_BOUNDARY.search(record.source) is not None
            several = several or (self.longest is not None and "\n" in record.source.strip())
            if len(whole) <= longest and not several:
                examples.append(Example([whole], notes=SourceParts([record.source], [0], unknown)))
                continue
            parts = [
                (number, part)
                for number, line in enumerate(record.source.strip().split("\n"))
                for part in split_into_chunks(line, tokenizer, longest, one_sentence=self.by_sentence)
            ] or [(0, "")]
            notes = SourceParts([part for _, part in parts], [number for number, _ in parts], unknown)
            examples.append(Example(tokenizer.encode(notes.parts, max_length=max_length), notes=notes))
        return examples

    def training_examples(self, inputs: Sequence[TranslateInput], examples: Sequence[Example]) -> list[Example]:
        targets = self.target.encode([record.target or "" for record in inputs])
        trained, self.left_out = [], []
        for record, example, target in zip(inputs, examples, targets, strict=True):
            if record.target is None:
                raise DataError(f"{record.place}: no translation to learn from; give 'target', or leave it out")
            if len(example.sequences) > 1 or len(target) > MAX_TARGET_TOKENS:
                self.left_out.append(f"{record.place}: too long to learn from as one; cut it into sentences")
                continue
            trained.append(replace(example, target=np.array(target.ids)))
        self.longest = max((example.length for example in trained), default=None)
        self.search = self.search.with_room_for((example.length, len(example.target) - 1) for example in trained)
        self.by_sentence = are_single_sentences([example.notes.parts[0] for example in trained])
        return trained

    def remarks(self, inputs: Sequence[TranslateInput]) -> list[str]:
        encoded = self.target.encode([record.target or "" for record in inputs])
        unknown = sum(self.target.unk_id in encoding.ids for encoding in encoded)
        remark = f"{unknown:,} of {len(inputs):,} targets have characters that are not in the target vocabulary: "
        return [remark + "in their place the source is copied"] if unknown else []

    def scores(self, model: Albert, batch: Batch) -> Scores:
        """The scores of every next token if the targets are known, otherwise the result of the beam search."""
        decoder: Any = model.heads[self.head_name]
        memory = decoder.memory(states_after(model.encoder, batch, decoder.config.depths), batch.real)
        if batch.targets is not None:
            return {"scores": decoder(memory, batch.real, batch.targets[:, :-1].clamp(min=0))}  # (S, T, V)
        search_settings = replace(self.search, beams=1) if self.validating else self.search
        return self.searched(decoder, memory, batch.real, search_settings)

    def searched(
        self, writer: StepDecoder, memory: Tensor, real: Tensor, search_settings: BeamSearch | None = None
    ) -> Scores:
        """The result of the beam search with this decoder, or another writer."""
        special = (self.target.pad_id, self.target.mask_id)
        ends = (self.target.cls_id, self.target.sep_id)
        result = search(writer, memory, real, *ends, search_settings or self.search, special, _content_columns(real))
        return {"ids": result.ids, "looked_at": result.source_columns, "log_likelihood": result.log_likelihood}

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        every, truth = scores["scores"].flatten(0, 1).float(), batch.targets[:, 1:].flatten()
        return F.cross_entropy(every, truth, ignore_index=IGNORE_INDEX, label_smoothing=self.label_smoothing)

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        real = batch.targets[:, 1:] != IGNORE_INDEX
        return symmetric_divergence(scores["scores"][real], others["scores"][real])

    def answer(self, record: TranslateInput, example: Example, scores: Scores) -> TranslateOutput:
        if not record.source.strip():
            return TranslateOutput("", 0.0, [])
        tokens, lines = 0, [list[str]() for _ in range(max(example.notes.lines) + 1)]
        shown = zip(example.notes.parts, example.notes.lines, example.sequences, strict=True)
        for row, (part, line, sequence) in enumerate(shown):
            ids = scores["ids"][row].tolist()
            ids = ids[: ids.index(self.target.sep_id)]
            tokens += len(ids) + 1
            lines[line].append(self._decode(ids, scores["looked_at"][row].tolist(), part, sequence))
        mean = float(scores["log_likelihood"].sum()) / tokens
        return TranslateOutput("\n".join(map(join_sentences, lines)), mean, example.notes.unknown)

    def _decode(self, ids: list[int], looked_at: list[int], part: str, sequence: Any) -> str:
        """The text of these tokens; an unknown one is copied from the source token with the most attention."""
        if self.target.unk_id not in ids:
            return self.target.decode(ids)
        text, offsets = "", sequence.offsets
        for unknown, run in groupby(zip(ids, looked_at, strict=False), key=lambda pair: pair[0] == self.target.unk_id):
            pairs = list(run)
            if not unknown:
                gap = " " if text and self._begins_word(pairs[0][0]) else ""
                said = self.target.decode([number for number, _ in pairs])
                text += gap + (said if self._marks_word_starts else said.removeprefix(CONTINUATION))
                continue
            for start, end in dict.fromkeys(_character_range(offsets, column) for _, column in pairs):
                gap = (
                    " " if text and end and (start == 0 or part[start - 1].isspace()) else ""
                )  # as close as in the source
                text += gap + part[start:end]
        return text

    def _begins_word(self, number: int) -> bool:
        token = self.target.token(number)
        return token.startswith("▁") if self._marks_word_starts else not token.startswith(CONTINUATION)

    @cached_property
    def _marks_word_starts(self) -> bool:
        """Whether the vocabulary marks word starts (▁), like SentencePiece, or continuations."""
        tokens = [self.target.token(number) for number in range(self.target.vocab_size)]
        return sum(token.startswith("▁") for token in tokens) > sum(token.startswith(CONTINUATION) for token in tokens)

    def for_saving(self, head: nn.Module) -> tuple[Translate, nn.Module]:
        made = Translate(self.shape, self.search, self.target, self.longest, self.by_sentence, self.label_smoothing)
        return made, head

    def metrics(self, inputs: Sequence[TranslateInput], outputs: Sequence[TranslateOutput]) -> dict[str, float]:
        """BLEU and chrF as sacreBLEU computes them, between 0 and 100."""
        return corpus_scores([output.translation for output in outputs], _targets(inputs))

    def signatures(self, inputs: Sequence[TranslateInput]) -> dict[str, str]:
        return metric_signatures(_targets(inputs))

    def judge(self, record: TranslateInput, output: TranslateOutput) -> Judgement:
        sacrebleu = require_extra("sacrebleu", "train")
        near = sacrebleu.sentence_chrf(output.translation, [record.target or ""]).score / 100
        return Judgement(record.source, record.target or "", output.translation, near)

    def baseline(self, inputs: Sequence[TranslateInput]) -> dict[str, float]:
        """The source itself, in which names and numbers are right."""
        return corpus_scores([record.source for record in inputs], _targets(inputs))


def _targets(inputs: Sequence[TranslateInput]) -> list[str]:
    return [record.target or "" for record in inputs]


def _character_range(offsets: Sequence[tuple[int, int]], column: int) -> tuple[int, int]:
    """The characters of the token in this column; if it has none, such as a space, of the next that has some, or of the
    previous one."""
    near = (*offsets[column:], *reversed(offsets[:column]))
    return next(((start, end) for start, end in near if end > start), (0, 0))


def _content_columns(real: Tensor) -> Tensor:  # (S, L)
    """The columns between [CLS] and [SEP]."""
    columns = torch.arange(real.shape[1], device=real.device)
    return (columns > 0) & (columns < real.sum(1, keepdim=True) - 1)


def _record(values: Mapping[str, Any], where: str) -> TranslateInput:
    for role, value in values.items():
        if value is not None and not isinstance(value, str):
            raise DataError(f"{where}: {role}={str(value)[:40]!r} must be a string; put it in quotes")
    if values["source"] is None:
        raise DataError(
            f"{where}: no text in column 'source'; rename a column to 'source', or name it with --columns source=NAME"
        )
    return TranslateInput(values["source"], values["target"], where)


def _labelled_record(values: Mapping[str, Any], where: str) -> TranslateInput:
    record = _record(values, where)
    for role, text in (("source", record.source), ("target", record.target)):
        if text is None or not text.strip():
            raise DataError(
                f"{where}: no {role}; fill it in (--columns {role}=NAME says which column it is), or leave "
                "such rows out with --skip-bad"
            )
    return record
