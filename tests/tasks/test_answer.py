"""Question answering: files, features, heads, decoding, thresholds."""

from __future__ import annotations

import json
import random
import re
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from litebert.data.batches import Batch, Example, collate
from litebert.data.squad import AnswerInput, GoldAnswer
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.loading import load
from litebert.measure.squad import question_scores
from litebert.model import Albert
from litebert.tasks import TASKS
from litebert.tasks.answer import Answer, allowed_columns
from litebert.tasks.base import Scores
from litebert.tokenizer import Tokenizer
from tests.conftest import PROSE, peer

pytestmark = pytest.mark.filterwarnings("ignore:.*are unknown to this vocabulary")

CONTEXT = "The baker opened at five, and by seven the shelves were nearly empty."
PLACES = ["village", "library", "garden", "bridge", "train", "lighthouse", "station", "roof"]


def asked(context: str, *answers: str, question: str = "When?") -> AnswerInput:
    return AnswerInput(question, context, tuple(GoldAnswer(text, context.find(text)) for text in answers))


def oracle(task: Answer, record: AnswerInput, example: Example) -> Scores:
    """What a model that knows the answer says."""
    rows = task.training_examples([record], [example])
    start, end = torch.zeros(2, len(rows), example.length)
    for number, row in enumerate(rows):
        start[number, row.target[0]] = end[number, row.target[1]] = 9.0
    return {"start": start, "end": end}


def unpacked(data: Path, archive: str, member: str, folder: Path) -> Path:
    with tarfile.open(data / "tasks" / f"{archive}.tar.xz") as tar:
        content = tar.extractfile(member)
        assert content is not None
        path = folder / Path(member).name
        path.write_bytes(content.read())
    return path


# ---- records


def test_whether_there_may_be_no_answer_follows_the_training_data() -> None:
    records = [asked(CONTEXT, "five"), asked(CONTEXT)]
    task = Answer.learn_from(records)
    assert task.allow_impossible
    assert not Answer.learn_from(records, allow_impossible=False).allow_impossible
    assert not Answer.learn_from(records[:1]).allow_impossible
    assert [task.stratum(record) for record in records] == ["answerable", "impossible"]
    assert task.baseline(records) == {"exact": 0.5, "f1": 0.5}


def test_an_answer_that_the_context_lacks_counts_in_evaluation_and_is_listed_in_training(
    tokenizer: Tokenizer,
) -> None:
    golds = {"good": ["five"], "lost": ["half past five"], "saved": ["at noon", "seven"]}
    records = [
        Answer().parse({"question": "?", "context": CONTEXT, "answers": texts}, f"t.json, question {name}")
        for name, texts in golds.items()
    ]
    task = Answer.learn_from(records)
    examples = task.features(records, tokenizer, 64)
    assert len(task.training_examples(records, examples)) == 2
    assert len(task.left_out) == 1
    assert "question lost: the answer 'half past five' does not stand in the context" in task.left_out[0]
    outputs = [
        task.answer(r, e, {"start": torch.zeros(1, 64), "end": torch.zeros(1, 64)})
        for r, e in zip(records, examples, strict=True)
    ]
    right = [replace(output, text="half past five") for output in outputs]
    assert task.metrics(records[1:2], right[1:2]) == {"exact": 1.0, "f1": 1.0}
    task.training_examples(records[:1], examples[:1])
    assert task.left_out == []


# ---- features and decoding


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    letters = [*"abcdefe日本語中文0123456789½.,-!"]
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *dict.fromkeys(letters),
        *(f"##{x}" for x in "abcdef0123456789"),
    ]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", "utf-8")
    return Tokenizer.from_vocab(path)


LETTERS = "abcdef  \u3000\n日本語中文。，😀👍🏽e\u0301é\u0308½ﬁ…१12.,-!한각각ß\u200d\ufe0f"


@pytest.mark.parametrize("pieces", ["unigram", "words"])
@given(
    context=st.text(st.sampled_from(LETTERS), min_size=1, max_size=40),
    ends=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    max_length=st.integers(24, 64),
)
def test_any_stretch_of_tokens_comes_back_with_its_exact_characters(
    tokenizer: Tokenizer, word_pieces: Tokenizer, pieces: str, context: str, ends: tuple[int, int], max_length: int
) -> None:
    task = Answer(max_answer_tokens=200)
    reader = tokenizer if pieces == "unigram" else word_pieces
    offsets = reader.encode([context])[0].offsets[1:-1]
    solid = [token for token, (start, end) in enumerate(offsets) if start < end]
    assume(solid)
    first, last = sorted(solid[end % len(solid)] for end in ends)
    start, end = offsets[first][0], offsets[last][1]
    record = AnswerInput("abc?", context, (GoldAnswer(context[start:end], start),))
    (example,) = task.features([record], reader, max_length)
    assume(last - first + 1 <= max_length // 3)
    output = task.answer(record, example, oracle(task, record, example))
    assert output.text == context[output.start : output.end] == context[start:end]


def test_an_answer_in_a_late_window_is_found(tokenizer: Tokenizer) -> None:
    context = " ".join(PROSE[:11])
    record = asked(context, "xylophones")
    task = Answer(allow_impossible=True)
    (example,) = task.features([record], tokenizer, 48)
    targets = np.array([row.target for row in task.training_examples([record], [example])])
    assert len(example.sequences) > 8
    assert all(len(window.ids) <= 48 for window in example.sequences)
    assert targets[0].tolist() == [0, 0, 1]
    assert 1 <= (targets[:, 2] == 0).sum() <= 3  # neighbours share half
    output = task.answer(record, example, oracle(task, record, example))
    assert (output.text, output.start) == ("xylophones", context.index("xylophones"))


def test_a_window_has_an_answer_only_whole(tokenizer: Tokenizer) -> None:
    context, task = " ".join(PROSE[:4]), Answer()
    words = [match.span() for match in re.finditer(r"\w+", context)]
    records = [AnswerInput("?", context, (GoldAnswer(context[start:end], start),)) for start, end in words]
    for record, example in zip(records, task.features(records, tokenizer, 40), strict=True):
        assert record.answers is not None
        start = record.answers[0].start
        for window, row in zip(example.notes.windows, task.training_examples([record], [example]), strict=True):
            offsets = example.notes.offsets[window.start : window.end]
            shown = offsets[0][0] <= start and start + len(record.answers[0].text) <= offsets[-1][1]
            assert row.target[2] == (not shown)
            if shown:
                assert window.column <= row.target[0] <= row.target[1] < window.column + len(offsets)
                assert offsets[row.target[0] - window.column][0] <= start < offsets[row.target[0] - window.column][1]


def test_null_needs_every_window_to_say_so(tokenizer: Tokenizer) -> None:
    record = AnswerInput("When?", " ".join(PROSE[:11]), ())
    task = Answer(allow_impossible=True)
    (example,) = task.features([record], tokenizer, 48)
    scores = oracle(task, record, example)
    assert all(row.target.tolist() == [0, 0, 1] for row in task.training_examples([record], [example]))
    silent = task.answer(record, example, scores)
    assert (silent.text, silent.start, silent.end) == ("", 0, 0)
    assert silent.probability == silent.no_answer_probability > 0.9
    window = example.notes.windows[3]
    scores["start"][3] = scores["end"][3] = 0.0
    scores["start"][3, window.column + 2] = scores["end"][3, window.column + 3] = 5.0
    assert task.answer(record, example, scores).text
    tied = scores | {name: torch.zeros_like(values) for name, values in scores.items()}
    assert task.answer(record, example, tied).text


def test_without_impossible_questions_in_training_there_is_always_an_answer(tokenizer: Tokenizer) -> None:
    record = AnswerInput("When?", CONTEXT, ())
    (example,) = Answer().features([record], tokenizer, 64)
    output = Answer().answer(record, example, oracle(Answer(), record, example))
    assert output.text
    assert output.no_answer_probability == 0


def brute_force(example: Example, scores: Scores, longest: int) -> list[tuple[float, int, int]]:
    """Every span of every window, in characters, each with its best score."""
    found: dict[tuple[int, int], float] = {}
    for row, window in enumerate(example.notes.windows):
        for i in range(window.start, window.end):
            for j in range(i, min(i + longest, window.end)):
                (start, a), (b, end) = example.notes.offsets[i], example.notes.offsets[j]
                if start < a and b < end:
                    columns = (i - window.start + window.column, j - window.start + window.column)
                    score = (scores["start"][row, columns[0]] + scores["end"][row, columns[1]]).item()
                    found[start, end] = max(score, found.get((start, end), -1e9))
    return sorted(((score, *place) for place, score in found.items()), key=lambda span: (-span[0], span[1:]))


@pytest.mark.parametrize("longest", [1, 4, 30])
def test_the_best_spans_are_those_of_a_full_search(tokenizer: Tokenizer, longest: int) -> None:
    task = Answer(max_answer_tokens=longest, allow_impossible=True)
    record = AnswerInput("When was it painted?", " ".join(PROSE[:4]))
    (example,) = task.features([record], tokenizer, 40)
    assert len(example.sequences) > 2
    torch.manual_seed(1)
    scores = {name: torch.randn(len(example.sequences), example.length) * 3 for name in ("start", "end")}
    decoded = task.decode(example, scores)
    expected = brute_force(example, scores, longest)[:20]
    assert [span[1:] for span in decoded.spans] == [span[1:] for span in expected]
    assert [span[0] for span in decoded.spans] == pytest.approx([span[0] for span in expected])
    null = (scores["start"][:, 0] + scores["end"][:, 0]).min().item()
    assert decoded.margin == pytest.approx(null - expected[0][0])
    shares = torch.tensor([*(span[0] for span in expected), null]).softmax(0).tolist()
    output = task.answer(record, example, scores)
    assert [one.probability for one in output.candidates] == pytest.approx(shares[:3])
    assert output.no_answer_probability == pytest.approx(shares[-1])


@pytest.mark.parametrize("head", ["linear", "joint"])
@pytest.mark.parametrize("context", ["", "  \n", "x"])
def test_a_context_with_nothing_to_read_has_no_answer(model: Model, context: str, head: Any) -> None:
    task = Answer(head)
    model = Model(Albert(model.config, {"answer": task.head(model.config)}), model.tokenizer, task)
    (output,) = model.predict([("", context)])
    assert output.text == context[output.start : output.end] == context.strip()
    assert 0 <= output.probability <= 1


def test_an_answer_that_lies_across_two_windows_gets_one_of_its_own(tokenizer: Tokenizer) -> None:
    context, task = " ".join(PROSE[:5]), Answer()
    words = [match.start() for match in re.finditer(r"\w+", context)]
    added = 0
    for first, after in zip(words, words[9:], strict=False):
        text = context[first:after].strip()
        record = AnswerInput("?", context, (GoldAnswer(text, first),))
        (example,) = task.features([record], tokenizer, 40)
        rows = task.training_examples([record], [example])
        if not rows:
            continue  # it is longer than a window
        added += len(rows) - len(example.sequences)
        assert any(row.target[2] == 0 for row in rows)
        for row in rows:
            (window,) = row.sequences
            if row.target[2] == 0:
                start, end = row.target[:2] - window.column + window.start  # type: ignore[attr-defined]
                offsets = example.notes.offsets
                assert context[offsets[start][0] : offsets[end][1]].strip() == text
                shown = [(window.ids[window.column + n]) for n in range(window.end - window.start)]  # type: ignore[attr-defined]
                whole = tokenizer.encode([context])[0].ids[1:-1]
                assert shown == whole[window.start : window.end]  # type: ignore[attr-defined]
    assert added


def test_an_answer_longer_than_every_window_is_listed(tokenizer: Tokenizer) -> None:
    context = " ".join(PROSE[:5])
    record = asked(context, context)
    task = Answer()
    assert task.training_examples([record], task.features([record], tokenizer, 40)) == []
    assert "fits into no window; shorten it" in task.left_out[0]


def test_questions_without_answers_cannot_be_learned_from(tokenizer: Tokenizer) -> None:
    record = AnswerInput("Who?", CONTEXT)
    with pytest.raises(DataError, match="'Who\\?': no answer to learn from"):
        Answer().training_examples([record], Answer().features([record], tokenizer, 64))


@pytest.mark.parametrize(("answer", "expected"), [("五" * 8, 30), ("五" * 45, 45), ("五" * 200, 60), ("one two", 30)])
def test_how_long_answers_may_be_follows_the_training_data(answer: str, expected: int) -> None:
    assert Answer.learn_from([asked(answer, answer)]).max_answer_tokens == expected


# ---- threshold and settings


def test_the_threshold_is_the_best_of_all(tokenizer: Tokenizer) -> None:
    chance, rng = random.Random(3), np.random.default_rng(3)
    records = [asked(text, *([text.split()[2]] if chance.random() < 0.6 else [])) for text in PROSE[:11] * 4]
    task = Answer(allow_impossible=True)
    examples = task.features(records, tokenizer, 64)
    found = []
    for record, example in zip(records, examples, strict=True):
        scores = oracle(task, record, example)
        noise = torch.from_numpy(rng.normal(0, 6, (2, 1, example.length))).float()
        found.append({"start": scores["start"] + noise[0], "end": scores["end"] + noise[1]})

    def f1_at(threshold: float) -> float:
        task.threshold = threshold
        outputs = [task.answer(*three) for three in zip(records, examples, found, strict=True)]
        return task.metrics(records, outputs)["f1"]

    margins = [task.decode(example, some).margin for example, some in zip(examples, found, strict=True)]
    best = max(f1_at(threshold) for threshold in [min(margins) - 1, *margins])
    task.threshold = 0.0
    task.tune(records, examples, found)
    assert f1_at(task.threshold) == pytest.approx(best)
    assert best > max(f1_at(-1e9), f1_at(1e9), f1_at(0.0))


def test_one_answer_is_judged_by_its_f1(tokenizer: Tokenizer) -> None:
    task = Answer()
    record = asked("他于1963年5月出生", "1963年", question="何时？")
    (example,) = task.features([record], tokenizer, 64)
    output = task.answer(record, example, oracle(task, record, example))
    judged = task.judge(record, replace(output, text="1963年5月"))
    assert (judged.text, judged.truth, judged.answer) == (f"何时？ / {record.context}", "1963年", "1963年5月")
    assert judged.right == pytest.approx(2 / 3)
    silent = task.judge(replace(record, answers=()), replace(output, text=""))
    assert (silent.truth, silent.answer, silent.right) == ("(no answer)", "(no answer)", 1.0)


def test_the_threshold_stays_where_validation_has_no_impossible_question(tokenizer: Tokenizer) -> None:
    task = Answer(allow_impossible=True, threshold=2.5)
    records = [asked(CONTEXT, "five")]
    examples = task.features(records, tokenizer, 64)
    task.tune(records, examples, [oracle(task, records[0], examples[0])])
    assert task.threshold == 2.5


def test_options_rebuild_the_task() -> None:
    task = Answer("joint", allow_impossible=True, threshold=-1.25, max_answer_tokens=42)
    again = Answer.from_settings({"options": json.loads(json.dumps(task.options()))})
    assert again.options() == task.options()
    assert Answer.from_settings({}).options() == Answer().options()


@pytest.mark.parametrize(
    "options", [{"head": "cnn"}, {"threshold": "x"}, {"max_answer_tokens": 0}, {"allow_impossible": 3}]
)
def test_damaged_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(options))):
        Answer.from_settings({"options": options})


def test_a_head_that_cannot_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="head='lstm' cannot answer questions; use linear or joint"):
        Answer.learn_from([asked(CONTEXT, "five")], head="lstm")


# ---- heads


def labelled_batch(task: Answer, tokenizer: Tokenizer) -> Batch:
    records = [asked(PROSE[0], "weather"), asked(PROSE[1][:60], "the old bridge"), AnswerInput("Who?", PROSE[2], ())]
    return collate(task.training_examples(records, task.features(records, tokenizer, 64)), tokenizer.pad_id)


def test_the_linear_head_is_transformers(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = peer("transformers")
    task = Answer(allow_impossible=True, threshold=1.5)
    ours = Model(Albert(model.config, {"answer": task.head(model.config)}).eval(), model.tokenizer, task)
    ours.save(tmp_path)
    theirs = transformers.AlbertForQuestionAnswering.from_pretrained(tmp_path).eval()
    batch = labelled_batch(task, model.tokenizer)
    assert batch.attention_mask is not None
    with torch.no_grad():
        scores = task.scores(ours.albert, batch)
        logits = theirs(batch.input_ids, batch.attention_mask.long(), batch.token_type_ids)
    for name, expected in (("start", logits.start_logits), ("end", logits.end_logits)):
        assert torch.allclose(scores[name][batch.real], expected[batch.real], atol=1e-5)
    monkeypatch.setitem(TASKS, "answer", Answer)
    again = load(tmp_path)
    assert again.task is not None
    assert again.task.options() == task.options()
    assert again.predict([("When?", CONTEXT)]) == ours.predict([("When?", CONTEXT)])


def test_only_the_context_and_the_mark_for_none_may_be_chosen(tokenizer: Tokenizer) -> None:
    task = Answer()
    records = [asked(CONTEXT, "five", question="When was that?"), asked("at five", "five")]
    examples = task.features(records, tokenizer, 64)
    allowed = allowed_columns(collate(examples, tokenizer.pad_id))
    for row, example in enumerate(examples):
        window = example.notes.windows[0]
        expected = {0, *range(window.column, window.column + window.end)}
        assert set(allowed[row].nonzero()[:, 0].tolist()) == expected
        assert window.ids[window.column + window.end] == tokenizer.sep_id


def test_the_linear_loss_is_the_mean_of_both_cross_entropies(tokenizer: Tokenizer) -> None:
    task = Answer()
    batch = labelled_batch(task, tokenizer)
    torch.manual_seed(0)
    scores = {name: torch.randn(*batch.input_ids.shape) for name in ("start", "end")}
    allowed, targets = allowed_columns(batch), batch.targets
    assert targets is not None
    assert targets[2].tolist() == [0, 0, 1]
    expected = [
        -scores[name][row][allowed[row]].log_softmax(0)[allowed[row].cumsum(0)[target] - 1]
        for column, name in enumerate(("start", "end"))
        for row, target in enumerate(targets[:, column])
    ]
    assert task.loss(scores, batch).item() == pytest.approx(torch.stack(expected).mean().item())
    moved = {name: values.masked_fill(~allowed, 7.0) for name, values in scores.items()}
    assert task.loss(moved, batch).item() == pytest.approx(task.loss(scores, batch).item())


def test_the_joint_loss_adds_half_of_the_answerability(tokenizer: Tokenizer) -> None:
    task = Answer("joint")
    batch = labelled_batch(task, tokenizer)
    torch.manual_seed(0)
    scores = {name: torch.randn(*batch.input_ids.shape) for name in ("start", "end")}
    impossible = torch.tensor([0.5, -1.0, 2.0])
    logs = [F.logsigmoid(-impossible[0]), F.logsigmoid(-impossible[1]), F.logsigmoid(impossible[2])]
    expected = Answer().loss(scores, batch) - torch.stack(logs).mean() / 2
    assert task.loss(scores | {"impossible": impossible}, batch).item() == pytest.approx(expected.item())


def test_in_training_the_true_start_decides_the_end(model: Model) -> None:
    task = Answer("joint")
    albert = Albert(model.config, {"answer": task.head(model.config)}).eval()
    batch = labelled_batch(task, model.tokenizer)
    assert batch.targets is not None
    moved = batch.targets.clone()
    moved[0, 0] += 1
    first, second = (task.scores(albert, replace(batch, targets=targets)) for targets in (batch.targets, moved))
    assert torch.equal(first["start"], second["start"])
    assert not torch.allclose(first["end"][0], second["end"][0])
    assert torch.equal(first["end"][1:], second["end"][1:])
    assert "ends" not in first
    assert set(task.scores(albert, replace(batch, targets=None))) == {"starts", "ends", "spans", "impossible"}


def test_the_joint_head_gives_no_answer_its_own_probability(model: Model) -> None:
    task = Answer("joint", allow_impossible=True)
    albert = Model(Albert(model.config, {"answer": task.head(model.config)}), model.tokenizer, task)
    record = task.parse(("When?", " ".join(PROSE[:4])), "input 1")
    examples = task.features([record], model.tokenizer, 48)
    (scores,) = albert.score_examples(task, examples, batch_size=2)
    assert scores["spans"].shape == (len(examples[0].sequences), 5, 5)
    scores["impossible"] = torch.linspace(2.0, -1.0, len(examples[0].sequences))
    output = task.answer(record, examples[0], scores)
    assert output.text
    assert output.no_answer_probability == pytest.approx(torch.tensor(-1.0).sigmoid().item())
    assert task.answer(record, examples[0], scores | {"impossible": scores["impossible"] + 2}).text == ""


@pytest.mark.parametrize("head", ["linear", "joint"])
def test_the_distance_of_scores_is_0_for_equals_and_ignores_what_may_not_be_chosen(model: Model, head: Any) -> None:
    task = Answer(head)
    albert = Albert(model.config, {"answer": task.head(model.config)})
    batch = labelled_batch(task, model.tokenizer)
    scores = {name: values.detach() for name, values in task.scores(albert, batch).items()}
    allowed = allowed_columns(batch)
    moved = scores | {"start": scores["start"].masked_fill(~allowed, 50.0)}
    assert task.divergence(scores, moved, batch).item() == pytest.approx(0, abs=1e-9)
    changed = torch.where(allowed, torch.linspace(0, 2, allowed.shape[1]), scores["end"])
    p, q = (
        torch.distributions.Categorical(logits=values.masked_fill(~allowed, float("-inf")))
        for values in (scores["end"], changed)
    )
    distance = torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p)
    assert task.divergence(scores, scores | {"end": changed}, batch).item() == pytest.approx(
        distance.mean().item() / 4, rel=1e-4
    )


def made_up_questions() -> list[AnswerInput]:
    """Two facts each; a quarter asks for a third that is not there."""
    chance, records = random.Random(7), []
    for number in range(32):
        place, other, third = chance.sample(PLACES, 3)
        first, second = chance.sample(["five", "seven", "two", "three", "old", "lazy"], 2)
        context = f"The {place} was {first}, and the {other} was {second}."
        answers = () if number % 4 == 3 else (GoldAnswer(second, context.rindex(second)),)
        records.append(AnswerInput(f"{third if not answers else other}?", context, answers))
    return records


@pytest.mark.parametrize("head", ["linear", "joint"])
def test_a_tiny_model_learns_a_few_questions_by_heart(model: Model, head: str) -> None:
    records = made_up_questions()
    task = Answer.learn_from(records, head)
    torch.manual_seed(0)
    albert = Albert(model.config, {"answer": task.head(model.config)})
    student = Model(albert, model.tokenizer, task)
    examples = task.features(records, model.tokenizer, 64)
    batch = collate(task.training_examples(records, examples), model.tokenizer.pad_id)
    optimizer = torch.optim.AdamW(albert.parameters(), lr=4e-3)
    first = task.loss(task.scores(albert, batch), batch).item()
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 30, (300 - step) / 100)
        loss = task.loss(task.scores(albert, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    task.tune(records, examples, student.score_examples(task, examples))
    measured = task.metrics(records, student.answer_records(records))
    assert loss.item() < first / 4
    assert measured["f1"] >= 0.95
    assert measured["no_answer_accuracy"] >= 0.8


# ---- real data


def aligned(task: Answer, records: list[AnswerInput], examples: list[Example]) -> float:
    """The share of gold answers in the context that come back exactly from their own tokens."""
    same = total = 0
    for record, example in zip(records, examples, strict=True):
        for answer, times in Counter(answer for answer in record.answers or () if answer.start is not None).items():
            alone = replace(record, answers=(answer,))
            output = task.answer(alone, example, oracle(task, alone, example))
            same += times * (output.text == answer.text.strip())
            total += times
    return same / total


@pytest.mark.parametrize(
    ("archive", "member", "questions", "impossible"),
    [
        ("qa", "qa/squad2_dev_half/dev-v2.0.json", 6078, 3168),
        ("qa", "qa/squadshifts/new_wiki_v1.0.json", 7938, 0),
        ("zh", "zh/cmrc2018/cmrc2018_dev.json", 3219, 0),
    ],
)
def test_the_answers_of_the_standard_sets_come_back_from_their_tokens(
    data: Path, tmp_path: Path, archive: str, member: str, questions: int, impossible: int
) -> None:
    vocabulary = data / "vocab"
    reader = (
        Tokenizer.from_vocab(vocabulary / "chinese" / "vocab.txt")
        if archive == "zh"
        else Tokenizer.from_spiece(vocabulary / "english" / "spiece.model")
    )
    records = Answer.read(unpacked(data, archive, member, tmp_path))
    assert (len(records), sum(record.impossible for record in records)) == (questions, impossible)
    task = Answer.learn_from(records, max_answer_tokens=200)
    examples = task.features(records, reader, 384)
    rows = task.training_examples(records, examples)
    assert task.left_out == []
    assert len(rows) == sum(len(example.sequences) for example in examples) > questions
    assert aligned(task, records, examples) >= 0.97
    if archive == "zh":
        lost = sum(answer.start is None for record in records for answer in record.answers or ())
        assert lost == 193  # annotators who wrote in their own words: evaluation counts these answers
        texts = [record.answers[-1].text for record in records if record.answers]
        golds = [[answer.text for answer in record.answers] for record in records if record.answers]
        assert question_scores(texts, golds)[0].min() == 1
