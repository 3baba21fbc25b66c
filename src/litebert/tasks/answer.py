"""Extractive question answering: the span of a context that answers a question, or none.

Shapes: S sequences (windows), L columns, H hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch, Example
from litebert.data.squad import AnswerInput, parse_question, question_items, read_questions
from litebert.data.tables import TableOptions
from litebert.data.windows import Window, shifted_window, split_into_windows
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.measure.squad import best_threshold, is_chinese, question_scores, segments, squad_metrics
from litebert.model import Albert, AlbertConfig, TokenHead
from litebert.model.span_head import MASKED, JointSpanHead
from litebert.tasks.base import Judgement, Scores, TrainableTask, hidden_states, saved_options, symmetric_divergence
from litebert.tokenizer import Tokenizer

SpanHeadKind = Literal["linear", "joint"]
WINDOW_OVERLAP = 0.5  # an answer of up to half a window is whole in one of them
MAX_SPANS = 20  # in the softmax
MAX_CANDIDATES = 3  # in the output
NO_ANSWER = "(no answer)"
ANSWER_TOKENS = (30, 60)  # the bounds of the longest answer, which follows the training data


@dataclass(frozen=True, slots=True)
class Candidate:
    """A span of the context: `context[start:end]` is its text."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class AnswerOutput:
    """The best answer; its text is empty if the context has none."""

    text: str
    start: int
    end: int
    """`context[start:end]` is the text."""
    probability: float
    no_answer_probability: float
    """0 for a model that was trained without unanswerable questions."""
    candidates: list[Candidate]
    """The best spans, even if no answer is predicted."""


@dataclass(frozen=True, slots=True)
class ContextEncoding:
    """The tokens of a context, kept with its example."""

    offsets: np.ndarray
    """(tokens, 2) the start and end of each token of the context, in characters."""
    windows: list[Window]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded scores of one question."""

    spans: list[tuple[float, int, int]]
    """Score, start and end in characters, best first, without duplicates."""
    null: float
    """The score of no answer, comparable with those of the spans."""
    margin: float
    """The score of no answer relative to the best span; compared with the threshold."""


class Answer(TrainableTask[AnswerInput, AnswerOutput]):
    """Scores for the first and the last token of the answer."""

    name = "answer"
    architecture = "AlbertForQuestionAnswering"
    head_name = "answer"
    metric = "f1"

    def __init__(
        self,
        head: SpanHeadKind = "linear",
        *,
        allow_impossible: bool = False,
        threshold: float = 0.0,
        max_answer_tokens: int = ANSWER_TOKENS[0],
    ) -> None:
        if head not in get_args(SpanHeadKind):
            raise ConfigError(f"head={head!r} cannot answer questions; use {' or '.join(get_args(SpanHeadKind))}")
        if max_answer_tokens < 1:
            raise ConfigError(f"max_answer_tokens={max_answer_tokens} must be at least 1; {ANSWER_TOKENS[0]} is usual")
        self.head_kind = head
        self.allow_impossible = allow_impossible
        """Whether a question may have no answer."""
        self.threshold = threshold
        """No answer is predicted if its margin is larger."""
        self.max_answer_tokens = max_answer_tokens
        self.left_out: list[str] = []
        """The questions that the last call of `training_examples` left out, and why."""

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Answer:
        options = saved_options(settings)
        allowed = options.get("allow_impossible", False)
        if not isinstance(allowed, bool):
            raise CheckpointError(f"allow_impossible={allowed!r} in config.json must be true or false")
        try:
            return cls(
                options.get("head", "linear"),
                allow_impossible=allowed,
                threshold=float(options.get("threshold", 0.0)),
                max_answer_tokens=int(options.get("max_answer_tokens", ANSWER_TOKENS[0])),
            )
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(f"options={options!r} in config.json: {error}") from error

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[AnswerInput]:
        return read_questions(path, options)

    @classmethod
    def learn_from(
        cls,
        inputs: Sequence[AnswerInput],
        head: str = "linear",
        *,
        allow_impossible: bool | None = None,
        max_answer_tokens: int | None = None,
        **_: Any,
    ) -> Answer:
        """By default follows the records: whether any has no answer, and the 99th percentile of the lengths."""
        if allow_impossible is None:
            allow_impossible = any(record.impossible for record in inputs)
        if max_answer_tokens is None:
            sizes = [len(segments(answer.text)) for record in inputs for answer in record.answers or ()]
            usual = int(np.percentile(sizes, 99)) if sizes else 0
            max_answer_tokens = min(max(usual, ANSWER_TOKENS[0]), ANSWER_TOKENS[1])
        return cls(head, allow_impossible=allow_impossible, max_answer_tokens=max_answer_tokens)  # type: ignore[arg-type]

    def settings(self) -> dict[str, Any]:
        return {}

    def options(self) -> dict[str, Any]:
        names = ("allow_impossible", "threshold", "max_answer_tokens")
        return {"head": self.head_kind} | {name: getattr(self, name) for name in names}

    def head(self, config: AlbertConfig) -> nn.Module:
        return JointSpanHead(config) if self.head_kind == "joint" else TokenHead(config, 2)

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        return question_items(path, options)

    def parse(self, item: Any, where: str) -> AnswerInput:
        return parse_question(item, where)

    def features(self, inputs: Sequence[AnswerInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        contexts = list(dict.fromkeys(record.context for record in inputs))  # many questions share one
        read: dict[str, tuple[list[int], np.ndarray]] = {}
        for context, encoding in zip(contexts, tokenizer.encode(contexts), strict=True):
            read[context] = encoding.ids[1:-1], np.array(encoding.offsets[1:-1], dtype=np.int64).reshape(-1, 2)
        examples = []
        for record, question in zip(inputs, tokenizer.encode([record.question for record in inputs]), strict=True):
            ids, offsets = read[record.context]
            windows = split_into_windows(
                question.ids[1:-1], ids, tokenizer, max_length, split_text=1, overlap=WINDOW_OVERLAP
            )
            examples.append(Example(windows, notes=ContextEncoding(offsets, windows)))
        return examples

    def training_examples(self, inputs: Sequence[AnswerInput], examples: Sequence[Example]) -> list[Example]:
        """One example per window; its target is the first and the last column of the answer, 0 if the window lacks it,
        and whether it does."""
        self.left_out = []
        windows = []
        for record, example in zip(inputs, examples, strict=True):
            try:
                windows += [Example([window], target) for window, target in _training_windows(record, example.notes)]
            except _NotTrainable as error:
                self.left_out.append(str(error))
        return windows

    def scores(self, model: Albert, batch: Batch) -> Scores:
        hidden = hidden_states(model.encoder, batch)
        head, allowed = model.heads[self.head_name], allowed_columns(batch)
        if not isinstance(head, JointSpanHead):
            start, end = head(hidden, batch.real).unbind(-1)
            return {"start": start, "end": end}  # (S, L)
        if batch.targets is not None:  # training: teacher forcing, the end given the true start
            start, end, impossible = head(hidden, allowed, batch.targets[:, 0])
            return {"start": start, "end": end, "impossible": impossible}
        context = allowed.clone()
        context[:, 0] = False
        beam, impossible = head.beam(hidden, allowed, context, self.max_answer_tokens)
        return {"starts": beam.starts, "ends": beam.ends, "spans": beam.scores, "impossible": impossible}

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        allowed, targets = allowed_columns(batch), batch.targets
        start, end = (
            F.cross_entropy(scores[name].float().masked_fill(~allowed, MASKED), targets[:, column])
            for column, name in enumerate(("start", "end"))
        )
        loss = (start + end) / 2
        if "impossible" in scores:
            impossible = targets[:, 2].to(scores["impossible"].dtype)
            loss = loss + F.binary_cross_entropy_with_logits(scores["impossible"], impossible) / 2
        return loss

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        allowed = allowed_columns(batch)
        start, end = (
            symmetric_divergence(*(outputs[name].float().masked_fill(~allowed, MASKED) for outputs in (scores, others)))
            for name in ("start", "end")
        )
        distance = (start + end) / 2
        if "impossible" in scores:
            left, right = scores["impossible"], others["impossible"]
            distance = distance + ((left.sigmoid() - right.sigmoid()) * (left - right)).mean() / 4
        return distance

    def answer(self, record: AnswerInput, example: Example, scores: Scores) -> AnswerOutput:
        decoded = self.decode(example, scores)
        logits = [score for score, _, _ in decoded.spans]
        if self.allow_impossible or not logits:
            logits.append(decoded.null)
        shares = torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist()
        no_answer = shares.pop() if len(shares) > len(decoded.spans) else 0.0
        candidates = [
            Candidate(record.context[start:end], start, end, share)
            for (_, start, end), share in zip(decoded.spans, shares, strict=True)
        ][:MAX_CANDIDATES]
        if not candidates or (self.allow_impossible and decoded.margin > self.threshold):
            return AnswerOutput("", 0, 0, no_answer, no_answer, candidates)
        best = candidates[0]
        return AnswerOutput(best.text, best.start, best.end, best.probability, no_answer, candidates)

    def decode(self, example: Example, scores: Scores) -> Decoded:
        """The best spans over all windows, and the score of no answer."""
        context: ContextEncoding = example.notes
        best_scores: dict[tuple[int, int], float] = {}
        for row, window in enumerate(context.windows):
            own = {name: values[row] for name, values in scores.items()}
            for score, first, last in self._spans(context, window, own):
                place = int(context.offsets[first, 0]), int(context.offsets[last, 1])
                best_scores[place] = max(score, best_scores.get(place, -math.inf))  # neighbouring windows share tokens
        spans = [(score, *place) for place, score in best_scores.items()]
        spans = sorted(spans, key=lambda span: (-span[0], span[1:]))[:MAX_SPANS]
        if "impossible" in scores:
            margin = scores["impossible"].min().item()  # one window that has an answer is enough
            # among the spans it then gets its own probability
            total = (
                torch.tensor([score for score, _, _ in spans], dtype=torch.float64).logsumexp(0).item()
                if spans
                else 0.0
            )
            return Decoded(spans, total + margin, margin)
        null = (scores["start"][:, 0] + scores["end"][:, 0]).float().min().item()
        return Decoded(spans, null, null - spans[0][0] if spans else math.inf)

    def _spans(self, context: ContextEncoding, window: Window, scores: Scores) -> list[tuple[float, int, int]]:
        """The best spans of one window: score, first and last token of the context."""
        solid = context.offsets[window.start : window.end, 1] > context.offsets[window.start : window.end, 0]
        if "spans" in scores:
            return _beam_spans(scores, window, torch.from_numpy(solid))
        if not solid.any():
            return []
        columns = slice(window.column, window.column + len(solid))
        # a token without characters starts and ends no span
        start, end = (
            scores[name][columns].float().masked_fill(~torch.from_numpy(solid), -math.inf) for name in ("start", "end")
        )
        longest = min(self.max_answer_tokens, len(solid))
        sums = start[:, None] + F.pad(end, (0, longest - 1), value=-math.inf).unfold(
            0, longest, 1
        )  # (start, length - 1)
        best = sums.flatten().topk(min(MAX_SPANS, sums.numel()))
        firsts, more = best.indices // longest, best.indices % longest
        rows = zip(best.values.tolist(), firsts.tolist(), more.tolist(), strict=True)
        return [(score, window.start + i, window.start + i + n) for score, i, n in rows if score > -math.inf]

    def tune(self, inputs: Sequence[AnswerInput], examples: Sequence[Example], scores: Sequence[Scores]) -> None:
        """Set the threshold to the one with the best F1, if there are unanswerable questions."""
        if not self.allow_impossible or not any(record.impossible for record in inputs):
            return
        decoded = [self.decode(example, outputs) for example, outputs in zip(examples, scores, strict=True)]
        texts = [
            record.context[question.spans[0][1] : question.spans[0][2]] if question.spans else ""
            for record, question in zip(inputs, decoded, strict=True)
        ]
        golds = gold_texts(inputs)
        answered, unanswered = question_scores(texts, golds)[1], question_scores([""] * len(golds), golds)[1]
        readable = [number for number, question in enumerate(decoded) if question.spans]
        if readable:
            margins = np.array([decoded[number].margin for number in readable])
            self.threshold = best_threshold(margins, answered[readable], unanswered[readable])

    def metrics(self, inputs: Sequence[AnswerInput], outputs: Sequence[AnswerOutput]) -> dict[str, float]:
        return squad_metrics([output.text for output in outputs], gold_texts(inputs))

    def judge(self, record: AnswerInput, output: AnswerOutput) -> Judgement:
        """Right is the F1. The language is that of the context: an answer may be a number."""
        golds = gold_texts([record])
        right = float(question_scores([output.text], golds, is_chinese([[record.context]]))[1][0])
        truth = " | ".join(dict.fromkeys(golds[0])) or NO_ANSWER
        shown = f"{record.question} / {record.context}"
        return Judgement(shown, truth, output.text or NO_ANSWER, right, output.probability)

    def baseline(self, inputs: Sequence[AnswerInput]) -> dict[str, float]:
        """No answer to every question."""
        scores = squad_metrics([""] * len(inputs), gold_texts(inputs))
        return {name: scores[name] for name in ("exact", "f1")}

    def group(self, record: AnswerInput) -> str:
        return record.context

    def stratum(self, record: AnswerInput) -> str:
        return "impossible" if record.impossible else "answerable"


class _NotTrainable(DataError):
    """A question that cannot be trained on."""


def _training_windows(record: AnswerInput, context: ContextEncoding) -> list[tuple[Window, np.ndarray]]:
    """Windows with their targets: first column, last column, and whether the answer is missing."""
    if record.answers is None:
        raise DataError(
            f"{record.place}: no answer to learn from; give one, or an empty one where the context has none"
        )
    if record.impossible:
        return [(window, np.array([0, 0, 1])) for window in context.windows]
    answer = next((answer for answer in record.answers if answer.start is not None), None)
    if answer is None or answer.start is None:
        raise _NotTrainable(
            f"{record.place}: the answer {record.answers[0].text[:40]!r} does not stand in the context, so there is "
            "nothing to learn; copy it from the context"
        )
    span = _token_range(context.offsets, answer.start, answer.start + len(answer.text))
    if span is None:
        raise _NotTrainable(
            f"{record.place}: the vocabulary has no token for the answer {answer.text[:40]!r}; use a model "
            "of its language"
        )
    first, last = span
    windows = list(context.windows)
    room = windows[0].end - windows[0].start
    if last - first >= room:
        raise _NotTrainable(
            f"{record.place}: the answer of {last - first + 1} tokens, {answer.text[:40]!r}, fits into no window; "
            "shorten it, or read more at once with --length"
        )
    if not any(_contains(window, first, last) for window in windows):  # add a window centred on it
        start = first - (room - (last - first + 1)) // 2
        windows.append(shifted_window(windows, min(max(0, start), windows[0].total - room)))
    return [
        (window, np.array([first - window.start + window.column, last - window.start + window.column, 0]))
        if _contains(window, first, last)
        else (window, np.array([0, 0, 1]))
        for window in windows
    ]


def _contains(window: Window, first: int, last: int) -> bool:
    return window.start <= first and last < window.end


def _token_range(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token of these characters; of overlapping tokens those that fit exactly."""
    starts, ends = offsets.T
    touching = np.flatnonzero((starts < ends) & (starts < end) & (ends > start))
    if not len(touching):
        return None
    firsts, lasts = touching[starts[touching] == start], touching[ends[touching] == end]
    first = int(firsts[0]) if len(firsts) else int(touching[0])
    last = int(lasts[-1]) if len(lasts) else int(touching[-1])
    return (first, last) if first <= last else (int(touching[0]), int(touching[-1]))


def allowed_columns(batch: Batch) -> Tensor:  # (S, L)
    """True at the tokens of the context, and at the first column, which stands for no answer."""
    columns = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
    context = (batch.token_type_ids == 1) & (columns < batch.lengths[:, None] - 1)  # the frame ends with [SEP]
    return context | (columns == 0)


def gold_texts(inputs: Sequence[AnswerInput]) -> list[list[str]]:
    return [[answer.text for answer in record.answers or ()] for record in inputs]


def _beam_spans(scores: Scores, window: Window, solid: Tensor) -> list[tuple[float, int, int]]:
    """The spans of the joint head's beam that start and end at tokens with characters."""
    size = scores["starts"].shape[0]
    firsts = (scores["starts"][:, None].expand(size, size) - window.column).flatten().tolist()
    lasts = (scores["ends"] - window.column).flatten().tolist()
    return [
        (score, window.start + first, window.start + last)
        for score, first, last in zip(scores["spans"].flatten().tolist(), firsts, lasts, strict=True)
        if score > MASKED / 2 and solid[first] and solid[last]
    ]
