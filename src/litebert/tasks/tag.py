"""Tagging: labelled spans of a text, such as named entities, chunks and parts of speech.

The first token of a word carries its tag. Shapes: S sequences, L columns, W words, C tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import IGNORE_INDEX, Batch, Example
from litebert.data.tables import TABLE_SUFFIXES, TableOptions, rename_columns
from litebert.data.windows import Window, split_into_windows
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.files import format_suffix
from litebert.model import Albert, AlbertConfig, HeadKind, TokenHead
from litebert.tasks.base import (
    Judgement,
    Scores,
    TrainableTask,
    f1_by_label,
    f1_scores,
    hidden_states,
    saved_options,
    symmetric_divergence,
)
from litebert.tasks.classify import MAX_CLASSES
from litebert.tasks.crf import (
    OUTSIDE,
    PREFIXES,
    CrfHead,
    Scheme,
    TransitionScores,
    WordRange,
    is_prefixed,
    log_likelihood,
    parse_tag,
    range_probabilities,
    tags_of_spans,
    transition_rules,
    viterbi,
    word_ranges,
)
from litebert.tasks.tag_files import Span, TagInput, parse_tagged, read_tagged, split_words
from litebert.tasks.text import head_kind_of, label_settings, labels_of
from litebert.tokenizer import Tokenizer

__all__ = ["FoundSpan", "Span", "Tag", "TagInput", "TagOutput", "WordTokens"]

OVERLAP = 0.5  # of neighbouring windows of a long text


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """A predicted span."""

    start: int
    end: int
    """The first character after it."""
    label: str
    text: str
    probability: float
    """Of exactly these words with this label, over all valid tag sequences."""


@dataclass(frozen=True, slots=True)
class TagOutput:
    """The spans of a text from left to right, without overlaps."""

    spans: list[FoundSpan]


@dataclass(frozen=True, slots=True)
class WordTokens:
    """The words of a text that have a token. Words that share a token count as one."""

    starts: list[int]
    ends: list[int]
    """In characters, exclusive."""
    tokens: list[int]
    """The first token of each word."""


class Tag(TrainableTask[TagInput, TagOutput]):
    """One score per token and tag; the best valid sequence."""

    name = "tag"
    architecture = "AlbertForTokenClassification"
    head_name = "tag"
    metric = "f1"

    def __init__(
        self, tags: Sequence[str], head: HeadKind = "linear", crf: bool = False, scheme: Scheme = "bio"
    ) -> None:
        self.tags, self.head_kind, self.crf, self.scheme = list(tags), head, crf, scheme
        self.num_inexact_spans = 0
        """Spans in the last `training_examples` that start or end inside a word: whole words are trained."""
        self._parts = [parse_tag(tag) for tag in self.tags]
        self._number = {part: number for number, part in enumerate(self._parts)}
        self._rules = transition_rules(self.tags, scheme)
        # where the right tag continues the span of the left one
        self._continuing = np.array([[a[1] == b[1] and b[0] in ("I", "E") for b in self._parts] for a in self._parts])

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Tag:
        tags, options = labels_of(settings, 2), saved_options(settings)
        crf = options.get("crf", False)
        if not isinstance(crf, bool):
            raise CheckpointError(f"crf={crf!r} in config.json must be true or false")
        scheme = _scheme_of(tags)
        if options.get("scheme", scheme) != scheme:
            raise CheckpointError(
                f"scheme={options['scheme']!r} in config.json does not fit its tags, which are {scheme}"
            )
        return cls(tags, head_kind_of(settings), crf, scheme)

    @classmethod
    def learn_from(
        cls,
        inputs: Sequence[TagInput],
        head: HeadKind = "linear",
        *,
        crf: bool = False,
        scheme: Scheme = "bio",
        **_: Any,
    ) -> Tag:
        if scheme not in PREFIXES:
            raise ConfigError(f"scheme={scheme!r} must be one of {', '.join(PREFIXES)}")
        labels = sorted({span.label for record in inputs for span in record.spans or ()})
        if not 1 <= len(labels) <= MAX_CLASSES:
            raise DataError(
                f"{len(labels)} kinds of spans in {len(inputs)} texts; there must be 1 to {MAX_CLASSES:,}: mark some, "
                "or check the last column"
            )
        tags = [f"{prefix}-{label}" for label in labels for prefix in PREFIXES[scheme]]
        return cls(["O", *tags], head, crf, scheme)

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[TagInput]:
        return read_tagged(path, options or TableOptions())

    def parse(self, item: Any, where: str) -> TagInput:
        if isinstance(item, TagInput):
            return item
        return parse_tagged(rename_columns(item, pairs=False) if isinstance(item, Mapping) else item, where)

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        if format_suffix(path) in TABLE_SUFFIXES:
            return super().items_of(path, options)
        return ((record.where, record) for record in read_tagged(path, options))

    def settings(self) -> dict[str, Any]:
        return label_settings(self.tags)

    def options(self) -> dict[str, Any]:
        kind = {} if self.head_kind == "linear" else {"head": self.head_kind}
        return kind | {"crf": self.crf, "scheme": self.scheme}

    def head(self, config: AlbertConfig) -> nn.Module:
        kind = CrfHead if self.crf else TokenHead
        return kind(config, len(self.tags), self.head_kind, config.classifier_dropout_prob)

    def features(self, inputs: Sequence[TagInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        examples = []
        for record, encoding in zip(inputs, tokenizer.encode([record.text for record in inputs]), strict=True):
            windows = split_into_windows(encoding.ids[1:-1], None, tokenizer, max_length, overlap=OVERLAP)
            places = split_words(record.text) if record.words is None else record.words
            examples.append(Example(windows, notes=_align_words(places, encoding.offsets[1:-1])))
        return examples

    def scores(self, model: Albert, batch: Batch) -> Scores:
        head = model.heads[self.head_name]
        scores = head(hidden_states(model.encoder, batch), batch.real)  # (S, L, C)
        if not isinstance(head, CrfHead):
            return {"scores": scores}
        chain = head.chain(self._rules)
        return {"scores": scores} | {
            name: values.expand(scores.shape[0], *values.shape) for name, values in chain.items()
        }

    def training_examples(self, inputs: Sequence[TagInput], examples: Sequence[Example]) -> list[Example]:
        """One example per window with the first token of a word; other tokens are ignored."""
        self.check(inputs)
        labelled, self.num_inexact_spans = [], 0
        for record, example in zip(inputs, examples, strict=True):
            words: WordTokens = example.notes
            numbers = np.array(self._numbers(record, words), dtype=np.int64)
            tokens = np.array(words.tokens, dtype=np.int64)
            for window in example.sequences:
                assert isinstance(window, Window)
                first, end = np.searchsorted(tokens, [window.start, window.end]).tolist()
                if self.crf:
                    first, end = self._without_cut_spans(numbers, first, end)
                target = np.full(len(window.ids), IGNORE_INDEX, dtype=np.int64)
                target[tokens[first:end] - window.start + window.column] = numbers[first:end]
                if end > first:
                    labelled.append(Example([window], target, per_token=True))
        return labelled

    def _without_cut_spans(self, numbers: np.ndarray, first: int, end: int) -> tuple[int, int]:
        """Leave out the rest of spans that a window cuts: it would be no valid sequence."""
        while first < end and np.isneginf(self._rules.start[numbers[first]]):
            first += 1
        while end > first and np.isneginf(self._rules.end[numbers[end - 1]]):
            end -= 1
        return first, end

    def _numbers(self, record: TagInput, words: WordTokens) -> list[int]:
        """The tag of each word; of two spans in one word the first counts."""
        ranges: list[WordRange] = []
        for span in record.spans or ():
            first = int(np.searchsorted(words.ends, span.start, side="right"))
            end = int(np.searchsorted(words.starts, span.end, side="left"))
            first = max(first, ranges[-1][1]) if ranges else first
            is_exact = first < end and (words.starts[first], words.ends[end - 1]) == (span.start, span.end)
            self.num_inexact_spans += not is_exact
            if first < end:
                ranges.append((first, end, span.label))
        parts = tags_of_spans(len(words.starts), ranges, self.scheme)
        lacking = next((part for part in parts if part not in self._number), None)
        if lacking is not None:
            raise self._unknown(record, lacking[1] or "O")
        return [self._number[part] for part in parts]

    def check(self, inputs: Sequence[TagInput]) -> None:
        known = {kind for _, kind in self._parts}
        for record in inputs:
            if record.spans is None:
                raise DataError(f"{record.place}: has no 'spans'; give a list, an empty one where nothing is marked")
            for span in record.spans:
                if span.label not in known:
                    raise self._unknown(record, span.label)

    def _unknown(self, record: TagInput, label: str) -> DataError:
        return DataError(
            f"{record.place}: label {label!r} is not marked by any of the trained tags {', '.join(self.tags[:20])}; "
            "correct it, or train with examples of it"
        )

    def remarks(self, inputs: Sequence[TagInput]) -> list[str]:
        if not self.num_inexact_spans:
            return []
        total = sum(len(record.spans or ()) for record in inputs)
        return [
            f"{self.num_inexact_spans:,} of {total:,} spans begin or end inside a word or a token: the whole words are "
            "learned, and such spans count as missed"
        ]

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        """The mean over words of the cross-entropy, or of the sequence's negative log-likelihood."""
        assert batch.targets is not None
        words = (batch.targets != IGNORE_INDEX).sum().clamp(min=1)
        if self.crf:
            chain = (scores[name][0] for name in ("transitions", "start", "end"))
            return -log_likelihood(scores["scores"], batch.targets, *chain).sum() / words
        flat = scores["scores"].float().flatten(0, 1)
        return F.cross_entropy(flat, batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum") / words

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        shown = batch.real if batch.targets is None else batch.targets != IGNORE_INDEX
        return symmetric_divergence(scores["scores"][shown], others["scores"][shown])

    def answer(self, record: TagInput, example: Example, scores: Scores) -> TagOutput:
        words: WordTokens = example.notes
        if not words.starts:
            return TagOutput([])
        rows, columns = _most_central(example.sequences)
        emissions = scores["scores"].double().numpy()[rows[words.tokens], columns[words.tokens]]  # (W, C)
        chain = self._rules
        if self.crf:
            learned = (scores[name][0].double().numpy() for name in ("transitions", "start", "end"))
            chain = chain + TransitionScores(*learned)
        path = viterbi(emissions, chain)
        ranges = word_ranges([self.tags[number] for number in path])
        probabilities = range_probabilities(emissions, chain, path, ranges, self._continuing)
        spans = []
        for (first, end, label), probability in zip(ranges, probabilities, strict=True):
            start, stop = words.starts[first], words.ends[end - 1]
            spans.append(FoundSpan(start, stop, label, record.text[start:stop], probability))
        return TagOutput(spans)

    def metrics(self, inputs: Sequence[TagInput], outputs: Sequence[TagOutput]) -> dict[str, float]:
        """Exact match of characters and label."""
        right, answered, true = (counts.total() for counts in _count_spans(inputs, outputs))
        return f1_scores(right, answered, true)

    def by_label(self, inputs: Sequence[TagInput], outputs: Sequence[TagOutput]) -> dict[str, dict[str, float]]:
        return f1_by_label(*_count_spans(inputs, outputs))

    def judge(self, record: TagInput, output: TagOutput) -> Judgement:
        truth, answer = _span_list(record.spans or ()), _span_list(output.spans)
        right = self.metrics([record], [output])["f1"] if truth or answer else 1.0
        confidence = min((span.probability for span in output.spans), default=None)
        return Judgement(record.text, truth, answer, right, confidence)

    def baseline(self, inputs: Sequence[TagInput]) -> dict[str, float]:
        return {"f1": 0.0}

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        if self.crf:
            return None
        targets = np.concatenate([example.target for example in examples])
        shares = np.bincount(targets[targets != IGNORE_INDEX]) / (targets != IGNORE_INDEX).sum()
        shares = shares[shares > 0]
        return float(-(shares * np.log(shares)).sum())

    def stratum(self, record: TagInput) -> str:
        return " ".join(sorted({span.label for span in record.spans or ()}))


def _scheme_of(tags: Sequence[str]) -> Scheme:
    """The scheme of the tags of a config.json."""
    marked = [tag for tag in tags if is_prefixed(tag)]
    if not marked:
        return "plain"
    parts = {parse_tag(tag) for tag in tags}
    scheme: Scheme = "bioes" if any(prefix in ("E", "S") for prefix, kind in parts) else "bio"
    # a tag that no valid sequence holds would silently never be predicted
    needs = {"I": "BE", "E": "B", "B": "E", "S": ""} if scheme == "bioes" else {"I": "B", "B": ""}
    lacking = [
        f"{need}-{kind}" for prefix, kind in parts if kind for need in needs[prefix] if (need, kind) not in parts
    ]
    if OUTSIDE not in parts or len(parts) != len(tags) or len(marked) + 1 != len(tags) or lacking:
        missing = f"{sorted(lacking)[0]} is missing" if lacking else "O and tags with the prefixes B-, I-, E- or S-"
        raise CheckpointError(
            f"id2label in config.json has the tags {', '.join(tags[:20])}, which must be {scheme.upper()}: {missing}; "
            "correct its names"
        )
    return scheme


def _align_words(places: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> WordTokens:
    words = WordTokens([], [], [])
    starts, ends = [start for start, _ in places], [end for _, end in places]
    # a lone "▁" is empty and is the first token of its word, as in transformers
    firsts = np.searchsorted(ends, [start for start, _ in offsets], side="right").tolist()
    lasts = (np.searchsorted(starts, [max(end, start + 1) for start, end in offsets], side="left") - 1).tolist()
    reached = -1
    for token, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        if last < max(first, reached):
            continue  # between words
        if first <= reached:
            if last > reached:
                words.ends[-1] = ends[last]
        else:
            words.starts.append(starts[first])
            words.ends.append(ends[last])
            words.tokens.append(token)
        reached = last
    return words


def _most_central(windows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """For each token the window in which it is farthest from a cut, and its column there."""
    total = max(window.end for window in windows)
    rows, columns = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    best = np.full(total, -1.0)
    for row, window in enumerate(windows):
        tokens = np.arange(window.start, window.end)
        left = tokens - window.start if window.start else np.full(len(tokens), np.inf)
        right = window.end - 1 - tokens if window.end < total else np.full(len(tokens), np.inf)
        distance = np.minimum(left, right)
        nearer = tokens[distance > best[tokens]]
        best[nearer] = distance[nearer - window.start]
        rows[nearer], columns[nearer] = row, nearer - window.start + window.column
    return rows, columns


def _count_spans(
    inputs: Sequence[TagInput], outputs: Sequence[TagOutput]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The number of right, predicted and true spans of each label."""
    right: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    true: Counter[str] = Counter()
    for record, output in zip(inputs, outputs, strict=True):
        truth = {(span.start, span.end, span.label) for span in record.spans or ()}
        predicted = {(span.start, span.end, span.label) for span in output.spans}
        for counts, spans in ((right, truth & predicted), (answered, predicted), (true, truth)):
            counts.update(label for _, _, label in spans)
    return right, answered, true


def _span_list(spans: Sequence[Span | FoundSpan]) -> str:
    return "; ".join(f"{span.label}: {span.text}" for span in spans)
