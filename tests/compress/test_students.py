"""Students and their teachers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import litebert
from litebert.compress.students import Distiller, make_student, mask_tokens
from litebert.data.batches import Batch, Example, collate
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig
from litebert.model.sentence_head import SentenceMap
from litebert.tasks.answer import Answer
from litebert.tasks.choose import Choose
from litebert.tasks.classify import Classify
from litebert.tasks.mask import Mask
from litebert.tasks.multilabel import Multilabel
from litebert.tasks.regress import Regress
from litebert.tasks.tag import Tag

TASKS: list[Any] = [
    None, Classify(["a", "b", "c"]), Multilabel(["a", "b"]), Regress(), Tag(["O", "B-x"]), Tag(["O", "B-x"], crf=True),
    Answer(), Choose(),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return litebert.load("litebert-small-zh").tokenizer


def model_of(tokenizer: Any, task: Any = None, **changes: object) -> Model:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 10_000, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64,
        "num_attention_heads": 4, "initializer_range": 0.2,
    } | changes  # fmt: skip
    config = AlbertConfig(**settings)
    return Model(Albert(config, {} if task is None else {task.head_name: task.head(config)}).eval(), tokenizer, task)


def batch() -> Batch:
    ids = torch.randint(5, 100, (4, 9), generator=torch.Generator().manual_seed(1))
    real = torch.arange(9) < torch.tensor([9, 7, 5, 9])[:, None]
    owner = torch.tensor([0, 0, 1, 1])
    return Batch(ids, real, (torch.arange(9) > 3) * real.long(), owner, 2, real.sum(1))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: "none" if task is None else task.name)
def test_a_student_with_all_passes_is_the_teacher_and_one_with_fewer_is_not(task: Any, tokenizer: Any) -> None:
    teacher = model_of(tokenizer, task)
    same = Distiller(make_student(teacher, teacher, 4), teacher).eval()(batch())
    assert same["loss"].item() == pytest.approx(0, abs=1e-6)
    fewer = Distiller(make_student(teacher, teacher, 2), teacher).eval()(batch())
    assert set(fewer) == {"loss", "states", *([] if task is None else ["answers"])}
    assert all(value > 1e-4 for value in fewer.values())


def test_the_student_learns_and_the_teacher_does_not(tokenizer: Any) -> None:
    task = Classify(["a", "b", "c"])
    teacher = model_of(tokenizer, task)
    before = [weight.clone() for weight in teacher.albert.parameters()]
    student = make_student(teacher, teacher, 2)
    distiller = Distiller(student, teacher)
    optimizer = torch.optim.Adam(distiller.parameters(), 1e-3)
    first = distiller(batch())["loss"].item()
    for _ in range(60):
        optimizer.zero_grad()
        found = distiller(batch())["loss"]
        found.backward()
        optimizer.step()
    assert found.item() < first / 3
    assert all(map(torch.equal, teacher.albert.parameters(), before))


def test_a_student_is_compared_after_fewer_passes_than_it_has(tokenizer: Any) -> None:
    teacher = model_of(tokenizer, Classify(["a", "b", "c"]))
    elastic = Distiller(make_student(teacher, teacher, 4), teacher).eval()
    short = Distiller(make_student(teacher, teacher, 2), teacher).eval()
    torch.testing.assert_close(elastic(batch(), 2), short(batch()))
    assert elastic(batch())["loss"].item() == pytest.approx(0, abs=1e-6)  # and then all of them again


def test_a_narrower_student_is_compared_through_a_map(tokenizer: Any) -> None:
    teacher = model_of(tokenizer, Regress())
    distiller = Distiller(make_student(teacher, model_of(tokenizer, hidden_size=16), 4), teacher)
    assert isinstance(distiller.bridge, torch.nn.Linear)
    assert distiller(batch())["loss"].isfinite()
    assert distiller.bridge.weight.grad is None
    distiller(batch())["loss"].backward()
    assert distiller.bridge.weight.grad is not None


def test_padding_does_not_count(tokenizer: Any) -> None:
    teacher = model_of(tokenizer)
    distiller = Distiller(make_student(teacher, model_of(tokenizer, hidden_size=16), 4), teacher).eval()
    given = batch()
    wider = replace(
        given,
        input_ids=torch.nn.functional.pad(given.input_ids, (0, 20)),
        attention_mask=torch.nn.functional.pad(given.real, (0, 20)),
        token_type_ids=torch.nn.functional.pad(given.token_type_ids, (0, 20)),
    )
    torch.testing.assert_close(distiller(wider), distiller(given))


def test_vectors_of_a_narrower_student_are_mapped_to_the_teachers(tokenizer: Any) -> None:
    teacher = model_of(tokenizer)
    random = np.random.default_rng(0)
    teacher.sentence_map = SentenceMap(random.normal(size=(8, 32)).astype("f"), random.normal(size=8).astype("f"))
    student = make_student(teacher, model_of(tokenizer, hidden_size=16), 4)
    distiller = Distiller(student, teacher)
    before = distiller.eval()(batch())["states"]
    distiller.fit_map([batch()])
    assert distiller.eval()(batch())["states"] < before
    texts = ["今天天气很好", "我要退货"]
    bridge: Any = distiller.bridge
    student.sentence_map, own = None, student.embed(texts)
    wanted = teacher.sentence_map(bridge(torch.from_numpy(own)).detach().numpy())
    student.sentence_map = distiller.sentence_map
    np.testing.assert_allclose(student.embed(texts), wanted, atol=1e-4)


def test_another_student_learns_to_guess_hidden_words(tokenizer: Any) -> None:
    teacher = model_of(tokenizer, Mask())
    assert not Distiller(make_student(teacher, teacher, 2), teacher).hides  # which has the teacher's own head
    student = make_student(teacher, model_of(tokenizer, hidden_size=16), 4)
    assert isinstance(student.task, Mask)
    distiller = Distiller(student, teacher)
    assert distiller.hides
    hidden = mask_tokens(batch(), tokenizer, np.random.default_rng(0))
    optimizer = torch.optim.Adam(distiller.parameters(), 3e-3)
    first = distiller(hidden)
    assert set(first) == {"loss", "states", "answers"}
    for _ in range(60):
        optimizer.zero_grad()
        found = distiller(hidden)
        found["loss"].backward()
        optimizer.step()
    assert found["answers"] < first["answers"] / 2


def test_some_words_are_hidden_and_never_the_frame(tokenizer: Any) -> None:
    encoded = tokenizer.encode(["今天天气很好我们去公园", "我要退货"] * 40)
    given = collate([Example([one]) for one in encoded], tokenizer.pad_id)
    hidden = mask_tokens(given, tokenizer, np.random.default_rng(0)).input_ids
    changed = hidden != given.input_ids
    assert 0.1 < changed.sum() / (given.real.sum() - 2 * 80) < 0.2
    assert (hidden[changed] == tokenizer.mask_id).all()
    frame = torch.isin(given.input_ids, torch.tensor([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]))
    assert not (changed & frame).any()
    one = collate([Example([encoded[1]])], tokenizer.pad_id)
    for seed in range(20):
        assert (mask_tokens(one, tokenizer, np.random.default_rng(seed)).input_ids == tokenizer.mask_id).any()


def test_a_head_begins_as_the_teachers_as_far_as_it_fits(tokenizer: Any) -> None:
    teacher = model_of(tokenizer, Tag(["O", "B-x"], crf=True))
    theirs = teacher.albert.heads["tag"].state_dict()
    with torch.no_grad():
        for values in theirs.values():
            values.normal_()
    same = make_student(teacher, model_of(tokenizer), 4).albert.heads["tag"].state_dict()
    assert all(torch.equal(values, theirs[name]) for name, values in same.items())
    narrow = make_student(teacher, model_of(tokenizer, hidden_size=16), 4).albert.heads["tag"].state_dict()
    assert torch.equal(narrow["transitions"], theirs["transitions"])


def test_another_model_that_learns_from_a_pre_trained_one_keeps_no_head_of_its_own(tokenizer: Any) -> None:
    teacher, start = model_of(tokenizer), model_of(tokenizer, Classify(["a", "b"]), max_position_embeddings=64)
    student = make_student(teacher, start, 4)
    assert student.task is None
    assert not student.albert.heads
    assert student.max_length == 64


def test_a_student_is_saved_with_its_passes_and_its_task(tokenizer: Any, tmp_path: Path) -> None:
    teacher = model_of(tokenizer, Classify(["a", "b"]))
    make_student(teacher, teacher, 3).save(tmp_path)
    found = litebert.load(tmp_path)
    assert found.config.num_hidden_layers == 3
    assert found.task is not None
    assert found.task.name == "classify"


def test_what_cannot_be_learned_is_told(tokenizer: Any) -> None:
    teacher = model_of(tokenizer, Classify(["a", "b"]))
    other = litebert.load("litebert-base-en")
    with pytest.raises(ConfigError, match="the same vocabulary"):
        make_student(model_of(tokenizer, Tag(["O", "B-x"])), other, 12)
    own = model_of(tokenizer, sharing="none")
    with pytest.raises(ConfigError, match="only one layer that is shared"):
        make_student(teacher, own, 2)
    assert make_student(teacher, own, 4).config.sharing == "none"
    with pytest.raises(ConfigError, match="joint head"):
        make_student(model_of(tokenizer, Answer("joint")), teacher, 4)
