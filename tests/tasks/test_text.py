"""What the tasks on whole texts share: files, pairs, long texts in windows."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litebert.data.batches import Batch, collate
from litebert.data.tables import TableOptions
from litebert.errors import CheckpointError, DataError
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig
from litebert.tasks import Classify, Multilabel, Regress
from litebert.tasks.base import mean_by_owner
from litebert.tasks.text import MAX_WINDOWS, TextInput, TextTask
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE

LONG = " ".join(PROSE[:9])
SUBJECTS, PLACES = ["rain", "map", "baker", "dog"], ["roof", "train", "garden", "bridge", "shelf", "egg", "sea", "inn"]
MADE_UP = [f"{subject} on the {place}" for subject, place in product(SUBJECTS, PLACES)]
"""32 texts whose parts say what they are about."""
GLUE: dict[str, tuple[type[TextTask[Any]], int, int]] = {
    "SST-2": (Classify, 67_349, 872),
    "CoLA": (Classify, 8_551, 1_043),
    "MRPC": (Classify, 3_667, 408),  # its train.tsv here lacks one of the published 3,668 pairs
    "RTE": (Classify, 2_490, 277),
    "STS-B": (Regress, 5_749, 1_500),
}


def with_head(model: Model, task: TextTask[Any], max_length: int = 32, spread: float = 0.5) -> Model:
    """A model with the task's head, whose scores differ clearly from text to text."""
    torch.manual_seed(1)
    albert = Albert(model.config, {task.head_name: task.head(model.config)}).eval()
    with torch.no_grad():
        for parameter in albert.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=spread * parameter.shape[-1] ** -0.5)
    return Model(albert, model.tokenizer, task, max_length)


def logits_of(model: Model, sequence: Any) -> torch.Tensor:
    """By hand: one sequence alone through encoder, pooler and the last layer."""
    ids, types = (torch.tensor([numbers]) for numbers in (sequence.ids, sequence.type_ids))
    with torch.inference_mode():
        pooled = model.encoder.pool(model.encoder(ids, None, types)[:, 0])
        linear: Any = model.albert.heads["classify"].linear
        return F.linear(pooled, linear.weight, linear.bias)[0]


def learned(
    task: TextTask[Any], records: Sequence[TextInput], tokenizer: Tokenizer, config: AlbertConfig, steps: int = 120
) -> Model:
    """A new model after so many steps on these records, all of them in every step."""
    torch.manual_seed(0)
    config = replace(config, num_hidden_layers=2, initializer_range=0.3, classifier_dropout_prob=0.0)
    albert = Albert(config, {task.head_name: task.head(config)})
    examples = task.training_examples(records, task.features(records, tokenizer, 64))
    batch = collate(examples, tokenizer.pad_id)
    optimizer = torch.optim.AdamW(albert.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(task.scores(albert, batch), batch).backward()
        optimizer.step()
    return Model(albert.eval(), tokenizer, task)


def scored(model: Model, records: Sequence[TextInput]) -> dict[str, float]:
    assert isinstance(model.task, TextTask)
    return model.task.metrics(records, model.answer_records(records))


def test_pairs_and_single_texts_are_framed_as_the_tokenizer_does(tokenizer: Tokenizer) -> None:
    records = [
        TextInput("rain fell", "on the roof"),
        TextInput("rain"),
        TextInput("a map", "two eggs"),
        TextInput("x", ""),
    ]
    examples = Classify(["a", "b"]).features(records, tokenizer, 64)
    for record, example in zip(records, examples, strict=True):
        expected = tokenizer.encode([record.text], None if record.text_b is None else [record.text_b])[0]
        (sequence,) = example.sequences
        assert (sequence.ids, sequence.type_ids) == (expected.ids, expected.type_ids)


def test_a_long_text_is_shown_whole_in_windows(tokenizer: Tokenizer) -> None:
    (example,) = Classify(["a", "b"]).features([TextInput(LONG)], tokenizer, 32)
    seen = {token for window in example.sequences for token in range(window.start, window.end)}  # type: ignore[attr-defined]
    assert seen == set(range(len(tokenizer.encode_ids([LONG])[0])))
    assert all(len(window.ids) <= 32 for window in example.sequences)


@pytest.mark.parametrize("partner", [None, "which of them is it?"])
def test_the_answer_for_a_long_text_is_that_of_the_mean_of_its_windows_logits(
    model: Model, partner: str | None
) -> None:
    classifier = with_head(model, Classify(["a", "b", "c"]))
    record = TextInput(LONG, partner)
    (example,) = Classify(["a", "b", "c"]).features([record], model.tokenizer, 32)
    alone = torch.stack([logits_of(classifier, window) for window in example.sequences])
    assert len(alone) > 5
    assert (alone - alone.mean(0)).abs().max() > 0.01  # the windows differ
    short = TextInput("rain")
    answers = classifier.answer_records([short, record, short], batch_size=2)
    assert list(answers[1].probabilities.values()) == pytest.approx(alone.mean(0).softmax(-1).tolist(), abs=1e-5)
    expected = pytest.approx(classifier.answer_records([short])[0].probabilities, abs=1e-5)
    assert answers[0].probabilities == expected
    assert answers[2].probabilities == expected


def test_the_loss_of_a_long_text_is_that_of_the_mean_of_its_windows_logits(model: Model) -> None:
    task = Classify(["a", "b", "c"])
    classifier = with_head(model, task)
    records = [TextInput("rain", label="a"), TextInput(LONG, label="c"), TextInput("the map", label="b")]
    examples = task.training_examples(records, task.features(records, model.tokenizer, 32))
    batch = collate(examples, model.tokenizer.pad_id)
    means = [torch.stack([logits_of(classifier, w) for w in example.sequences]).mean(0) for example in examples]
    loss = task.loss(task.scores(classifier.albert, batch), batch)
    assert loss.item() == pytest.approx(F.cross_entropy(torch.stack(means), torch.tensor([0, 2, 1])).item(), abs=1e-5)


def test_of_a_very_long_text_evenly_spread_windows_are_read(tokenizer: Tokenizer) -> None:
    text = LONG * 8
    (example,) = Classify(["a", "b"]).features([TextInput(text)], tokenizer, 32)
    windows: list[Any] = list(example.sequences)
    assert len(windows) == MAX_WINDOWS
    assert windows[0].start == 0
    assert windows[-1].end == len(tokenizer.encode_ids([text])[0])
    gaps = [after.start - before.start for before, after in pairwise(windows)]
    assert max(gaps) - min(gaps) <= 60  # two windows


def test_the_mean_by_owner_is_over_the_sequences_of_each_example() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0]])
    empty = torch.zeros(3, 1, dtype=torch.long)
    batch = Batch(empty, None, empty, torch.tensor([0, 1, 1]), 2)
    assert mean_by_owner(scores, batch).tolist() == [[1.0, 2.0], [4.0, 2.0]]
    assert mean_by_owner(scores[:, 0], batch).tolist() == [1.0, 4.0]


def test_a_file_s_rows_become_records_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("sentence1\tsentence2\tlabel\none\ttwo\tyes\n", encoding="utf-8")
    (record,) = Classify.read(path)
    assert record == TextInput("one", "two", "yes")
    assert record.place == f"{path}, line 2"


def test_a_text_column_that_was_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("genre,sentence1,sentence2,label\nnews,left,right,a\n", encoding="utf-8")
    assert Classify.read(path, TableOptions.parse(["text=genre"])) == [TextInput("news", None, "a")]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("text,kind\none,a\n", r"line 2: no column 'label' \(columns: text, kind\); .*--columns label=NAME"),
        ("text,label\none,a\ntwo, \n", r"line 3: no value in column 'label'; .*--skip-bad"),
        ("words,label\none,a\n", r"line 2: no text in column 'text' or 'text_a' .*--columns text=NAME"),
    ],
)
def test_a_row_without_text_or_label_is_refused_with_the_way_out(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=rf"t\.csv, {complaint}"):
        Classify.read(path)


def test_bad_records_are_left_out_and_remembered_where_that_is_asked_for(tmp_path: Path) -> None:
    path, options = tmp_path / "t.csv", TableOptions(skip_bad=True)
    path.write_text("text,label\none,1.5\ntwo,high\nthree,\nfour,2\n", encoding="utf-8")
    assert [record.label for record in Regress.read(path, options)] == [1.5, 2]
    assert [("line 3" in skipped, "line 4" in skipped) for skipped in options.skipped] == [(True, False), (False, True)]


@pytest.mark.parametrize("task", [Classify, Multilabel, Regress])
def test_a_head_that_nobody_knows_is_refused(task: type[TextTask[Any]]) -> None:
    with pytest.raises(CheckpointError, match=r"head='tree' in config\.json must be one of linear, mlp, cnn, lstm"):
        task.from_settings({"num_labels": 2, "options": {"head": "tree"}})


@pytest.mark.parametrize("task", [Classify(["a", "b"], "cnn"), Multilabel(["a"], "lstm"), Regress("mlp")])
def test_the_head_s_kind_is_kept_in_the_options(task: Any) -> None:
    again = type(task).from_settings(task.settings() | {"options": task.options()})
    assert again.head_kind == task.head_kind


@pytest.mark.parametrize(
    ("task", "labels"), [(Classify, ["a", "b"]), (Multilabel, [("a",), ("b",)]), (Regress, [1, 2])]
)
@pytest.mark.parametrize("paired", [True, False])
def test_who_learned_pairs_is_asked_about_pairs_and_who_did_not_is_not(
    tokenizer: Tokenizer, task: Any, labels: list[Any], paired: bool
) -> None:
    taught = [TextInput("rain", "roof" if paired else None, label) for label in labels]
    learned = task.learn_from(taught)
    again = task.from_settings(learned.settings() | {"options": learned.options(), "num_labels": len(labels)})
    good, bad = [again.parse(item, "line 7") for item in (["rain", "roof"], "rain")][:: 1 if paired else -1]
    for one in (learned, again):
        assert one.features([good], tokenizer, 16)
        complaint = (
            "line 7: a single text, but this task is about pairs: give text_a" if paired else "line 7: a pair, but"
        )
        with pytest.raises(DataError, match=complaint):
            one.features([good, bad], tokenizer, 16)


def test_who_learned_both_or_comes_from_elsewhere_is_asked_anything(tokenizer: Tokenizer) -> None:
    both = [TextInput("rain", "roof", "a"), TextInput("rain", None, "b")]
    for task in (Classify.learn_from(both), Classify.from_settings({"num_labels": 2})):
        assert len(task.features(both, tokenizer, 16)) == 2


def test_pairs_that_are_neither_true_nor_false_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"pairs='yes' in config\.json must be true or false"):
        Classify.from_settings({"num_labels": 2, "options": {"pairs": "yes"}})


def test_every_glue_file_is_read_whole_and_without_settings(data: Path, tmp_path: Path) -> None:
    with tarfile.open(data / "tasks" / "glue.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    for benchmark, (task, *sizes) in GLUE.items():
        tables = [task.read(next(tmp_path.rglob(f"{benchmark}/{part}.tsv"))) for part in ("train", "dev")]
        assert [len(table) for table in tables] == sizes, benchmark
        pairs = benchmark in ("MRPC", "RTE", "STS-B")
        assert all(record.text and bool(record.text_b) == pairs for table in tables for record in table), benchmark
    assert len(Classify.read(next(tmp_path.rglob("MRPC/msr_paraphrase_test.txt")))) == 1_725
    assert len(Classify.read(next(tmp_path.rglob("QNLI/dev.tsv")))) == 5_463
    numbered = TableOptions.parse(["label=5", "text=6", "text_b=7"])
    assert len(Regress.read(next(tmp_path.rglob("STS-B/sts-test.tsv")), numbered)) == 1_379
