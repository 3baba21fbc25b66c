"""Multiple choice: files, windows, loss, and transformers' logits."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from litebert.data.batches import Batch, Example, collate
from litebert.data.tables import TableOptions
from litebert.errors import ConfigError, DataError
from litebert.inference import Model
from litebert.loading import load
from litebert.model import Albert, AlbertConfig
from litebert.tasks import TASKS
from litebert.tasks.base import Judgement
from litebert.tasks.choose import MAX_OPTIONS, MAX_WINDOWS, Choose, ChooseInput, ChooseOutput
from litebert.tokenizer import Tokenizer, train_unigram
from tests.conftest import PROSE, peer

LAMP = {"text": "The lamp is on.", "question": "What is on", "options": ["the lamp", "the radio"], "answer": "A"}


@pytest.fixture
def chooser(model: Model) -> Model:
    torch.manual_seed(1)
    task = Choose()
    return Model(Albert(model.config, {task.head_name: task.head(model.config)}).eval(), model.tokenizer, task)


def asked(*options: str, text: str = "", question: str = "which one", answer: int | None = 0) -> ChooseInput:
    return ChooseInput(question, options, text, answer)


def chosen(option: str) -> ChooseOutput:
    return ChooseOutput(0, option, [1.0])


def batch_of(windows: Sequence[int], options: Sequence[int], answers: Sequence[int]) -> Batch:
    """A batch of sequences that say nothing: examples with so many windows for each of so many options."""

    class Nothing:
        ids, type_ids = [2, 3], [0, 0]

    return collate(
        [
            Example([Nothing()] * (w * o), np.array([answer, o]))
            for w, o, answer in zip(windows, options, answers, strict=True)
        ],
        0,
    )


# Files


@pytest.mark.parametrize(
    ("archive", "folder", "questions", "options"),
    [("choice", "choice/dream", 2040, {3}), ("zh", "zh/c3", 1991, {2, 3, 4})],
)
def test_dream_and_c3_are_read_whole_and_every_answer_is_the_file_s(
    data: Path, tmp_path: Path, archive: str, folder: str, questions: int, options: set[int]
) -> None:
    with tarfile.open(data / "tasks" / f"{archive}.tar.xz") as packed:
        name = next(name for name in packed.getnames() if name.removeprefix("./").startswith(folder) and "dev" in name)
        packed.extract(name, tmp_path, filter="data")
    records = Choose.read(tmp_path / name)
    truth = [one for _, some, _ in json.loads((tmp_path / name).read_text(encoding="utf-8")) for one in some]
    assert len(records) == len(truth) == questions
    assert {len(record.options) for record in records} == options
    assert [record.options[record.answer or 0] for record in records] == [one["answer"].strip() for one in truth]


RACE = {
    "article": "A short story.",
    "questions": ["Who?", "Where?"],
    "options": [["Ann", "Bob", "Cid", "Dot"], ["here", "there", "far", "near"]],
    "answers": ["C", "A"],
    "id": "high1.txt",
}


@pytest.mark.parametrize("name", ["race.json", "race.jsonl", "folder"])
def test_race_is_read_from_a_file_json_lines_or_a_folder(tmp_path: Path, name: str) -> None:
    if name == "folder":
        (tmp_path / name / "high").mkdir(parents=True)
        for number in (1, 2):
            (tmp_path / name / "high" / f"{number}.txt").write_text(json.dumps(RACE), encoding="utf-8")
    else:
        (tmp_path / name).write_text(f"{json.dumps(RACE)}\n{json.dumps(RACE)}\n", encoding="utf-8")
    records = Choose.read(tmp_path / name)
    assert [record.answer for record in records] == [2, 0, 2, 0]
    assert records[1] == ChooseInput("Where?", ("here", "there", "far", "near"), "A short story.", 0, "high1.txt-2")


def test_a_table_has_options_in_columns_and_rows_may_have_fewer(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "question,option_1,option_2,option_3,answer\nsky?,blue,red,green,A\nsea?,dry,wet,,wet\n", encoding="utf-8"
    )
    assert Choose.read(path) == [
        ChooseInput("sky?", ("blue", "red", "green"), answer=0),
        ChooseInput("sea?", ("dry", "wet"), answer=1),
    ]


@pytest.mark.parametrize("options", ["blue|red", '["blue", "red"]', ["blue", "red"]])
@pytest.mark.parametrize("truth", [{"answer": "red"}, {"answer": "B"}, {"answer": "b"}, {"label": 1}, {"label": "1"}])
def test_options_and_answers_are_understood_in_every_form(options: object, truth: dict[str, object]) -> None:
    record = Choose().parse({"question": "sky?", "options": options} | truth, "x")
    assert (record.options, record.answer) == (("blue", "red"), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"answer": "the moon"},
            "answer='the moon' is none of the options .*give an option's text, or a letter from A",
        ),
        ({"answer": "1"}, "answer='1' is none .*could count from 0 or 1.*column 'label'"),
        ({"answer": "C"}, "letter from A to B"),
        ({"options": ["b", "a"], "answer": "a"}, "text of option 2 and the letter of option 1.*'label'"),
        ({"answer": "", "label": 2}, "label=2 must be the number of the right option, 0 to 1"),
        ({"answer": "", "label": "science"}, "label='science' must be the number"),
        ({"answer": ""}, "'What is on' has no answer .*--skip-bad"),
        ({"options": ["one"]}, "1 option.*needs 2 to 20"),
        ({"options": ["x"] * 21}, "21 option.*needs 2 to 20"),
        ({"options": ["one", " "]}, "option 2 of 2 is empty; fill it in"),
        ({"options": {"a": 1}}, "options=.* must be a list, or texts with '\\|'"),
        ({"options": "[1, 2"}, "is not a JSON list"),
        ({"question": "", "text": None}, "no 'question' and no 'text'.*--columns question=NAME"),
        ({"question": 3}, "question='3' must be a string"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_or_left_out(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(LAMP)}\n{json.dumps(LAMP | change)}\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"t.jsonl, line 2: .*{message}"):
        Choose.read(path)
    options = TableOptions(skip_bad=True)
    assert len(Choose.read(path, options)) == 1
    assert len(options.skipped) == 1


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ([[["a", "b"], [{"question": "q", "choice": ["x", "y"], "answer": "z"}], "1"]], "item 1, question 1"),
        ([[["a", "b"], [{"question": "q", "options": ["x", "y"]}], "1"]], "item 1: .*no passage of DREAM"),
        ([[["a", "b"], "1"]], "item 1: .*no passage of DREAM"),
        ({"article": "a", "questions": ["q"], "options": []}, "line 1: .*nor one of RACE"),
    ],
)
def test_a_damaged_passage_is_told_with_its_place(tmp_path: Path, content: object, where: str) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=f"d.json, {where}"):
        Choose.read(path)


@pytest.mark.parametrize("item", [3, None, "text", ("a", "b")])
def test_what_is_not_a_question_is_refused_with_its_place(item: object) -> None:
    with pytest.raises(DataError, match="input 7"):
        Choose().parse(item, "input 7")


# What the model reads


def test_an_option_follows_its_question_and_both_follow_the_passage(tokenizer: Tokenizer) -> None:
    example = Choose().features([asked("the map", "a letter", text="She packed it.")], tokenizer, 64)[0]
    theirs = tokenizer.encode(["She packed it."] * 2, ["which one the map", "which one a letter"])
    assert [window.ids for window in example.sequences] == [encoding.ids for encoding in theirs]
    assert [window.type_ids for window in example.sequences] == [encoding.type_ids for encoding in theirs]


def test_chinese_is_joined_without_a_space() -> None:
    tokenizer = train_unigram([*PROSE, *["天是什么颜色？蓝色", "他在哪里？在这里"] * 40], 260)
    example = Choose().features([asked("蓝色", "在这里", text="天", question="天是什么颜色？")], tokenizer, 64)[0]
    assert example.sequences[0].ids == tokenizer.encode(["天"], ["天是什么颜色？蓝色"])[0].ids


def test_a_question_without_a_passage_stands_first(tokenizer: Tokenizer) -> None:
    example = Choose().features([asked("the map", "a letter")], tokenizer, 64)[0]
    assert example.sequences[1].ids == tokenizer.encode(["which one"], ["a letter"])[0].ids


@pytest.mark.parametrize("max_length", [8, 16, 40, 64])
@pytest.mark.parametrize("words", [0, 10, 40, 400])
def test_a_text_of_any_length_fits_and_all_options_see_the_same_of_it(
    tokenizer: Tokenizer, max_length: int, words: int
) -> None:
    record = asked("map", "the old bridge of the village", "rain " * 30, text="weather " * words, question="q " * 9)
    example = Choose().features([record], tokenizer, max_length)[0]
    assert example.length <= max_length
    assert len(example.sequences) % 3 == 0
    of_option = [example.sequences[at :: len(example.sequences) // 3] for at in range(len(example.sequences) // 3)]
    assert len(of_option) <= MAX_WINDOWS
    for windows in of_option:  # the same window of every option
        assert len({(window.start, window.end) for window in windows}) == 1  # type: ignore[attr-defined]


def test_a_long_question_loses_its_beginning_and_never_the_option(tokenizer: Tokenizer) -> None:
    record = asked("the map", "a letter", text="weather " * 99, question="which of these is it then, " * 9)
    example = Choose().features([record], tokenizer, 40)[0]
    for option, at in (("the map", 0), ("a letter", len(example.sequences) // 2)):
        end = tokenizer.encode_ids([option])[0]
        assert example.sequences[at].ids[-1 - len(end) : -1] == end


# What it computes


def test_logits_are_transformers_multiple_choice_s(chooser: Model, tmp_path: Path) -> None:
    transformers = peer("transformers")
    chooser.save(tmp_path)
    theirs = transformers.AlbertForMultipleChoice.from_pretrained(tmp_path).eval()
    record = asked("the baker", "nobody", "a model", text=PROSE[4], question="Who opened at five")
    example = chooser.task.features([record], chooser.tokenizer, 64)[0]  # type: ignore[union-attr]
    batch = collate([example], chooser.tokenizer.pad_id)
    with torch.inference_mode():
        expected = theirs(
            input_ids=batch.input_ids[None],
            attention_mask=batch.real[None].long(),
            token_type_ids=batch.token_type_ids[None],
        ).logits[0]
    ours = chooser.score_examples(Choose(), [example])[0]["scores"]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    answer = chooser.answer_records([record])[0]
    assert answer.probabilities == pytest.approx(expected.softmax(-1).tolist(), abs=1e-5)
    assert answer.option == record.options[int(expected.argmax())]


def test_a_saved_model_answers_the_same(chooser: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "choose", Choose)
    chooser.save(tmp_path)
    assert load(tmp_path).predict([LAMP]) == chooser.predict([LAMP])


def test_an_option_counts_by_its_best_window() -> None:
    record = asked("a", "b")
    scores = {"scores": torch.tensor([0.0, 3.0, 2.0, 2.5])}  # two windows each
    answer = Choose().answer(record, Example([]), scores)
    assert (answer.choice, answer.option) == (0, "a")
    assert answer.probabilities == pytest.approx(torch.tensor([3.0, 2.5]).softmax(-1).tolist())


def test_the_loss_is_cross_entropy_over_the_options_of_each_question() -> None:
    batch = batch_of(windows=[1, 2, 1], options=[2, 3, 4], answers=[1, 2, 0])
    scores = torch.tensor([1.0, 2.0, 0.0, 5.0, 1.0, -1.0, 2.0, 0.5, 0.1, 0.2, 0.3, 0.4], requires_grad=True)
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([5.0, 1.0, 2.0]), torch.tensor([0.1, 0.2, 0.3, 0.4])]
    expected = -sum(row.log_softmax(-1)[at] for row, at in zip(rows, (1, 2, 0), strict=True)) / 3
    loss = Choose().loss({"scores": scores}, batch)
    assert loss.item() == pytest.approx(float(expected))
    loss.backward()
    assert scores.grad is not None
    assert (scores.grad != 0).tolist() == [True, True, False, True, True, False, True, False, True, True, True, True]


def test_the_divergence_is_zero_for_equals_and_the_hand_s_otherwise() -> None:
    batch = batch_of(windows=[1, 1], options=[2, 3], answers=[0, 0])
    left, right = torch.tensor([0.0, 1.0, 0.0, 0.0, 2.0]), torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0])
    expected = 0.0
    for at in (slice(0, 2), slice(2, 5)):
        p, q = left[at].log_softmax(0), right[at].log_softmax(0)
        expected += float((p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()) / 4
    task = Choose()
    assert task.divergence({"scores": left}, {"scores": left}, batch) == 0
    assert float(task.divergence({"scores": left}, {"scores": right}, batch)) == pytest.approx(expected, rel=1e-5)


def test_accuracy_counts_by_the_option_s_text() -> None:
    records = [asked("x", "y", "x", answer=2), asked("x", "y"), asked("x", "y"), asked("x", "y", answer=1)]
    outputs = [chosen("x"), chosen("x"), chosen("y"), chosen("y")]
    assert Choose().metrics(records, outputs) == {"accuracy": 0.75}


def test_a_judgement_shows_what_was_asked_and_both_answers() -> None:
    record = asked("rain", "sun", text="It was wet.", question="What was it?")
    judged = Choose().judge(record, ChooseOutput(1, "sun", [0.2, 0.8]))
    assert judged == Judgement("It was wet. / What was it? / rain|sun", "rain", "sun", 0.0, 0.8)


@pytest.mark.parametrize(("answers", "expected"), [([1, 1, 0, 1], 0.75), ([0, 1, 2, 3], 0.25)])
def test_the_baseline_is_the_best_place_or_chance(answers: list[int], expected: float) -> None:
    assert Choose().baseline([asked(*"wxyz", answer=answer) for answer in answers]) == {"accuracy": expected}


def test_the_prior_loss_is_that_of_knowing_nothing() -> None:
    task, records = Choose(), [asked("x", "y"), asked(*"wxyz")]
    examples = task.training_examples(records, [Example([]), Example([])])
    assert task.constant_answer_loss(examples) == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_another_head_and_a_missing_answer_are_refused() -> None:
    with pytest.raises(ConfigError, match="head='cnn' is not for this task"):
        Choose.learn_from([], "cnn")
    with pytest.raises(DataError, match="'which one': no answer to learn from"):
        Choose().training_examples([asked("x", "y", answer=None)], [Example([])])


def test_a_tiny_model_learns_made_up_questions_of_any_number_of_options(tokenizer: Tokenizer) -> None:
    """The right option is the word that the passage has too; the passage of some needs several windows."""
    words = ["rain", "map", "bridge", "letter", "train", "garden", "baker", "fox"]
    random = np.random.default_rng(0)
    records = []
    for number in range(32):
        options = random.permutation(words)[: 2 + number % 4].tolist()
        answer = number % len(options)
        filler = "and so on " * (0 if number % 4 else 9)
        records.append(asked(*options, text=f"{filler}it was the {options[answer]}", answer=answer))
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size, embedding_size=16, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    task = Choose.learn_from(records)
    model = Model(Albert(config, {task.head_name: task.head(config)}), tokenizer, task, max_length=32)
    batch = collate(task.training_examples(records, task.features(records, tokenizer, 32)), tokenizer.pad_id)
    assert len(batch.example_index) > sum(len(record.options) for record in records)  # there are windows
    optimizer = torch.optim.AdamW(model.albert.parameters(), lr=3e-3)
    for _ in range(250):
        optimizer.zero_grad()
        task.loss(task.scores(model.albert, batch), batch).backward()
        optimizer.step()
    assert task.metrics(records, model.answer_records(records))["accuracy"] == 1
    assert task.baseline(records)["accuracy"] < 0.5


def test_twenty_options_are_the_most_and_work(chooser: Model) -> None:
    answer = chooser.answer_records([asked(*(f"option {n}" for n in range(MAX_OPTIONS)))])[0]
    assert len(answer.probabilities) == MAX_OPTIONS
    assert sum(answer.probabilities) == pytest.approx(1)
