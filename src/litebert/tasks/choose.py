"""Multiple choice: which option answers the question?

Shapes: B examples, S sequences. An example has a sequence for every option, or, where the passage is long, the same
number of windows for every option, option after option.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch, Example
from litebert.data.tables import TableOptions, json_rows, read_json_file, read_rows, read_text, rename_columns
from litebert.data.windows import Window, split_into_windows
from litebert.errors import ConfigError, DataError
from litebert.files import format_suffix
from litebert.model import Albert, AlbertConfig, HeadKind, PooledHead
from litebert.tasks.base import Judgement, Scores, TrainableTask, pooled_states, symmetric_divergence
from litebert.tasks.mask import joining_space
from litebert.tokenizer import Tokenizer

MAX_OPTIONS = 20
MAX_WINDOWS = 4  # of one passage; of more, evenly spaced ones are used
SEPARATOR = "|"
LETTERS = "ABCDEFGHIJKLMNOPQRST"
MISSING_OPTION_SCORE = -1e4  # finite, with a probability of 0


@dataclass(frozen=True, slots=True)
class ChooseInput:
    """A question, the options, the passage, and the right option if it is known."""

    question: str
    options: tuple[str, ...]
    text: str = ""
    """The passage, if there is one."""
    answer: int | None = None
    """Counted from 0."""
    id: str | None = None
    """Its id in the file."""
    where: str = field(default="", compare=False, repr=False)
    """The file and line it came from, for errors."""

    @property
    def place(self) -> str:
        return self.where or repr(self.question[:40])

    @property
    def right(self) -> str | None:
        """The right option's text."""
        return None if self.answer is None else self.options[self.answer]


@dataclass(frozen=True, slots=True)
class ChooseOutput:
    """The likeliest option, and the probability of every option."""

    choice: int
    """Counted from 0."""
    option: str
    probabilities: list[float]


class Choose(TrainableTask[ChooseInput, ChooseOutput]):
    """Every option is read with the question and the passage, and scored from the pooled vector.

    A long passage is split into windows; the score of an option is that of its best window.
    """

    name = "choose"
    architecture = "AlbertForMultipleChoice"
    head_name = "choose"
    metric = "accuracy"

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Choose:
        return cls()

    def settings(self) -> dict[str, Any]:
        return {}

    def head(self, config: AlbertConfig) -> nn.Module:
        return PooledHead(config, 1, config.classifier_dropout_prob)

    @classmethod
    def read(cls, path: Path, options: TableOptions | None = None) -> list[ChooseInput]:
        """DREAM's or C3's JSON, RACE's (a file, or a folder of them), or a table; see `parse` for its columns."""
        options = options or TableOptions()
        records = []
        for file in _files(path):
            for item, where in _items(file, options):
                try:
                    questions = _questions(item, where)
                except DataError as error:
                    options.skip_or_raise(error)
                    continue
                for values, place in questions:
                    try:
                        records.append(_labelled_record(values, place))
                    except DataError as error:
                        options.skip_or_raise(error)
        return records

    @classmethod
    def learn_from(cls, inputs: Sequence[ChooseInput], head: HeadKind = "linear", **_: Any) -> Choose:
        if head != "linear":
            raise ConfigError(
                f"head={head!r} is not for this task: options are compared by the linear head; leave it out"
            )
        return cls()

    def items_of(self, path: Path, options: TableOptions) -> Iterator[tuple[str, Any]]:
        for file in _files(path):
            for item, where in _items(file, options):
                yield from ((place, values) for values, place in _questions(item, where))

    def parse(self, item: Any, where: str) -> ChooseInput:
        """A mapping with `question`, `text` (the passage) or both, and the options: `options`, a list or names with `|`
        between them, or `option_1`, `option_2`, ….

        Where the right option is known it is `answer`, a letter (A is the first) or the option's text, or else `label`,
        its number counted from 0.
        """
        if not isinstance(item, Mapping):
            raise DataError(f"{where}: {str(item)[:40]!r} must be an object with 'question' and 'options'")
        return _parse(rename_columns(item, pairs=False), where)

    def features(self, inputs: Sequence[ChooseInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        pairs = [_texts(record) for record in inputs]
        firsts = tokenizer.encode([first for first, _ in pairs])
        seconds = iter(tokenizer.encode([second for _, seconds in pairs for second in seconds]))
        return [
            Example(
                _sequences(first.ids[1:-1], [next(seconds).ids[1:-1] for _ in record.options], tokenizer, max_length)
            )
            for record, first in zip(inputs, firsts, strict=True)
        ]

    def training_examples(self, inputs: Sequence[ChooseInput], examples: Sequence[Example]) -> list[Example]:
        for record in inputs:
            if record.answer is None:
                raise DataError(f"{record.place}: no answer to learn from; give one, or leave the question out")
        targets = [np.array([record.answer, len(record.options)]) for record in inputs]
        return [Example(example.sequences, target) for example, target in zip(examples, targets, strict=True)]

    def scores(self, model: Albert, batch: Batch) -> Scores:
        return {"scores": model.heads[self.head_name](pooled_states(model.encoder, batch)).squeeze(-1)}  # (S,)

    def loss(self, scores: Scores, batch: Batch) -> Tensor:
        assert batch.targets is not None
        return F.cross_entropy(_by_option(scores["scores"], batch), batch.targets[:, 0])

    def group(self, record: ChooseInput) -> str | None:
        return record.text or None

    def divergence(self, scores: Scores, others: Scores, batch: Batch) -> Tensor:
        return symmetric_divergence(_by_option(scores["scores"], batch), _by_option(others["scores"], batch))

    def answer(self, record: ChooseInput, example: Example, scores: Scores) -> ChooseOutput:
        best_windows = scores["scores"].float().view(len(record.options), -1).amax(1)
        row = best_windows.softmax(-1).tolist()
        choice = max(range(len(row)), key=row.__getitem__)
        return ChooseOutput(choice, record.options[choice], row)

    def metrics(self, inputs: Sequence[ChooseInput], outputs: Sequence[ChooseOutput]) -> dict[str, float]:
        # compared by text: files repeat an option here and there, and either of the two is right
        right = [record.right == output.option for record, output in zip(inputs, outputs, strict=True)]
        return {"accuracy": sum(right) / len(right)}

    def judge(self, record: ChooseInput, output: ChooseOutput) -> Judgement:
        shown = " / ".join(part for part in (record.text, record.question, SEPARATOR.join(record.options)) if part)
        right = float(record.right == output.option)
        return Judgement(shown, record.right or "", output.option, right, max(output.probabilities))

    def baseline(self, inputs: Sequence[ChooseInput]) -> dict[str, float]:
        """The most frequent position or a random option, whichever is better."""
        place = Counter(record.answer for record in inputs).most_common(1)[0][1] / len(inputs)
        return {"accuracy": max(place, sum(1 / len(record.options) for record in inputs) / len(inputs))}

    def constant_answer_loss(self, examples: Sequence[Example]) -> float | None:
        return sum(math.log(example.target[1]) for example in examples) / len(examples)


def _by_option(scores: Tensor, batch: Batch) -> Tensor:  # (S,) -> (B, MAX_OPTIONS)
    """The score of the best window of each option. Without targets, which hold the number of options, every window
    counts as an option."""
    counts = batch.example_index.new_zeros(batch.examples).index_add(
        0, batch.example_index, torch.ones_like(batch.example_index)
    )
    place = torch.arange(len(scores), device=scores.device) - (counts.cumsum(0) - counts)[batch.example_index]
    width = MAX_OPTIONS
    if batch.targets is None:
        width = int(counts.max())
    else:
        place = place // (counts // batch.targets[:, 1])[batch.example_index]
    empty = torch.full((batch.examples * width,), MISSING_OPTION_SCORE, device=scores.device)
    cells = batch.example_index * width + place
    return empty.scatter_reduce(0, cells, scores.float(), "amax").view(batch.examples, width)


def _texts(record: ChooseInput) -> tuple[str, list[str]]:
    """What stands first, and for every option what stands second."""
    if not record.text:
        return record.question, list(record.options)
    return record.text, [record.question + joining_space(record.question, option) + option for option in record.options]


def _sequences(first: list[int], seconds: Sequence[list[int]], tokenizer: Tokenizer, max_length: int) -> list[Window]:
    """The windows of every option. All options are read with the same stretches of the passage."""
    room = max_length - 3
    most = max(room // 2, room - len(first))
    seconds = [second[-most:] for second in seconds]  # the end is the option, which makes the difference
    longest = max(map(len, seconds))
    sequences = []
    for second in seconds:
        windowed = len(first) + longest > room
        length = max_length - (longest - len(second)) if windowed else max_length
        sequences += split_into_windows(first, second, tokenizer, length, split_text=0, max_windows=MAX_WINDOWS)
    return sequences


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if format_suffix(file) in (".txt", ".json", ".jsonl"))
    if not files:
        raise DataError(f"{path}: a folder without .txt, .json or .jsonl files; give one like RACE's, or a file")
    return files


def _items(path: Path, options: TableOptions) -> Iterator[tuple[Any, str]]:
    """What a file holds, a passage or a question each, and where it stood."""
    kind = format_suffix(path)
    begin = read_text(path).lstrip()[:1] if kind in (".json", ".txt") else ""
    if kind == ".json" and begin == "[":
        values = read_json_file(path)
        if any(isinstance(value, list) for value in values):
            yield from ((value, f"{path}, item {number}") for number, value in enumerate(values, start=1))
            return
    # RACE's files are JSON and called .txt
    rows = json_rows(path, options) if kind == ".txt" and begin == "{" else read_rows(path, options, pairs=False)
    yield from ((row.values, row.where) for row in rows)


def _questions(item: Any, where: str) -> list[tuple[dict[str, Any], str]]:
    """The questions of a passage as rows of a table would give them; a row of a table is one already."""
    if isinstance(item, Mapping) and "questions" not in item:
        return [(dict(item), where)]
    try:
        if isinstance(item, Mapping):
            return _race(item, where)
        lines, questions, name = item
        return [
            (
                {"text": "\n".join(lines), "question": question["question"], "options": question["choice"]}
                | {"answer": question.get("answer"), "id": f"{name}-{number}"},
                f"{where}, question {number}",
            )
            for number, question in enumerate(questions, start=1)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: {str(item)[:60]!r} is no passage of DREAM, [[lines], [questions], id] with 'question' and "
            f"'choice', nor one of RACE, with 'article', 'questions', 'options' and 'answers' ({error}); correct it"
        ) from error


def _race(item: Mapping[str, Any], where: str) -> list[tuple[dict[str, Any], str]]:
    questions, name = item["questions"], item.get("id", "")
    parts = zip(questions, item["options"], item.get("answers", [None] * len(questions)), strict=True)
    return [
        (
            {"text": item["article"], "question": question, "options": options, "answer": answer}
            | {"id": f"{name}-{number}"},
            f"{where}, question {number}",
        )
        for number, (question, options, answer) in enumerate(parts, start=1)
    ]


def _labelled_record(values: Mapping[str, Any], where: str) -> ChooseInput:
    record = _parse(values, where)
    if record.answer is None:
        raise DataError(
            f"{where}: {record.question[:60]!r} has no answer (columns: {', '.join(map(str, values))}); give 'answer', "
            "the option's text or letter, or 'label', its number counted from 0, or leave it out with --skip-bad"
        )
    return record


def _parse(values: Mapping[str, Any], where: str) -> ChooseInput:
    question = _string(values, "question", where)
    text = _string(values, "article" if "text" not in values else "text", where)
    if not question and not text:
        raise DataError(
            f"{where}: no 'question' and no 'text' (columns: {', '.join(map(str, values))}); rename a column, or name "
            "it with --columns question=NAME"
        )
    options = _options(values, where)
    name = values.get("id")
    return ChooseInput(
        question, options, text, _answer(values, options, where), None if name is None else str(name), where
    )


def _string(values: Mapping[str, Any], name: str, where: str) -> str:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: {name}={str(value)[:40]!r} must be a string; put it in quotes")
    return (value or "").strip()


def _options(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    value = values.get("options")
    if value is None:
        numbered = {int(name[7:]): name for name in map(str, values) if re.fullmatch(r"option_\d+", name)}
        value = [values[numbered[number]] for number in sorted(numbered)]
        while value and value[-1] in (None, ""):  # a table is as wide as its longest row
            value.pop()
    elif isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{where}: options={value[:40]!r} is not a JSON list ({error}); correct it") from error
    elif isinstance(value, str):
        value = value.split(SEPARATOR)
    if not isinstance(value, (list, tuple)) or not all(isinstance(option, (str, int, float)) for option in value):
        raise DataError(
            f"{where}: options={str(value)[:60]!r} must be a list, or texts with {SEPARATOR!r} between them"
        )
    options = tuple(str(option).strip() for option in value)
    if not 2 <= len(options) <= MAX_OPTIONS:
        raise DataError(
            f"{where}: {len(options)} option(s); a question needs 2 to {MAX_OPTIONS}, in option_1, option_2, … or "
            f"in 'options', with {SEPARATOR!r} between them"
        )
    if "" in options:
        raise DataError(f"{where}: option {options.index('') + 1} of {len(options)} is empty; fill it in")
    return options


def _answer(values: Mapping[str, Any], options: Sequence[str], where: str) -> int | None:
    answer, label = values.get("answer"), values.get("label")
    if answer is not None and str(answer).strip():
        return _named(str(answer).strip(), options, where)
    if label is None or not str(label).strip():
        return None
    if not re.fullmatch(r"\d{1,2}", str(label).strip()) or int(label) >= len(options):
        raise DataError(
            f"{where}: label={label!r} must be the number of the right option, 0 to {len(options) - 1}; correct it, or "
            "give its text or letter in a column 'answer'"
        )
    return int(label)


def _named(answer: str, options: Sequence[str], where: str) -> int:
    by_text = options.index(answer) if answer in options else None
    letters = LETTERS[: len(options)]
    by_letter = letters.index(answer.upper()) if len(answer) == 1 and answer.upper() in letters else None
    if by_text is not None and by_letter is not None and by_text != by_letter:
        raise DataError(
            f"{where}: answer={answer!r} is the text of option {by_text + 1} and the letter of option {by_letter + 1}; "
            "give a column 'label' with its number, counted from 0, instead"
        )
    option = by_letter if by_text is None else by_text
    if option is None:
        number = (
            "a number could count from 0 or 1, so put it, from 0, in a column 'label'; " if answer.isdigit() else ""
        )
        raise DataError(
            f"{where}: answer={answer[:60]!r} is none of the options {str(list(options))[:120]}; {number}"
            f"give an option's text, or a letter from A to {letters[-1]}"
        )
    return option
