"""Teachers that other libraries made, with transformers as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import litebert
from litebert.compress.students import TextDistiller, compares_texts_only, make_student, teacher_targets
from litebert.compress.teachers import TransformersTeacher, load_other_teacher
from litebert.data.batches import Example, collate
from litebert.errors import CheckpointError, ConfigError
from litebert.inference import Model
from litebert.model import Albert, AlbertConfig
from litebert.tasks.classify import Classify
from tests.interop.berts import make_bert

TEXTS = ["the order was late", "thanks", "where is the money now", "great help", "love is bad"]


def inputs(teacher: Model) -> dict[str, torch.Tensor]:
    batch = collate([Example([one]) for one in teacher.tokenizer.encode(TEXTS)], teacher.tokenizer.pad_id)
    return {"input_ids": batch.input_ids, "attention_mask": batch.real.long()}


def small(vocabulary: Any, task: Any = None) -> Model:
    torch.manual_seed(1)
    config = AlbertConfig(
        vocab_size=10_000, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, initializer_range=0.2,
    )  # fmt: skip
    return Model(Albert(config, {} if task is None else {task.head_name: task.head(config)}).eval(), vocabulary, task)


@pytest.fixture(scope="module")
def vocabulary() -> Any:
    return litebert.load("litebert-small-zh").tokenizer


def test_an_encoder_that_transformers_computes_embeds_and_is_timed(tmp_path: Path) -> None:
    theirs, teacher = make_bert(tmp_path, "ElectraModel", embedding_size=16), load_other_teacher(tmp_path)
    assert isinstance(teacher, TransformersTeacher)
    given = inputs(teacher)
    with torch.no_grad():
        states, real = theirs(**given).last_hidden_state, given["attention_mask"][..., None]
    np.testing.assert_allclose(teacher.embed(TEXTS), (states * real).sum(1) / real.sum(1), atol=1e-5)
    assert teacher.passes == 3
    assert teacher.max_length == 62


@pytest.mark.parametrize("kind", ["ElectraForSequenceClassification", "DistilBertForSequenceClassification"])
def test_a_classifier_that_transformers_computes_answers(kind: str, tmp_path: Path) -> None:
    theirs = make_bert(tmp_path, kind, id2label={0: "bad", 1: "good", 2: "neither"})
    teacher = load_other_teacher(tmp_path)
    assert isinstance(teacher, TransformersTeacher)
    with torch.no_grad():
        wanted = theirs(**inputs(teacher)).logits.softmax(-1)
    found = [list(one.probabilities.values()) for one in teacher.predict(TEXTS)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert set(teacher.predict(["thanks"])[0].probabilities) == {"bad", "good", "neither"}


def test_berts_are_computed_by_our_own_encoder_and_ours_are_left_to_load(tmp_path: Path, vocabulary: Any) -> None:
    make_bert(tmp_path / "bert", "BertForSequenceClassification")
    teacher = load_other_teacher(tmp_path / "bert")
    assert type(teacher) is Model
    assert teacher.task is not None
    small(vocabulary).save(tmp_path / "albert")
    assert load_other_teacher(tmp_path / "albert") is None
    assert load_other_teacher(tmp_path / "none") is None


@pytest.mark.parametrize("taught", [True, False])
def test_a_student_that_reads_other_tokens_learns_what_is_said_of_whole_texts(
    taught: bool, tmp_path: Path, vocabulary: Any
) -> None:
    make_bert(tmp_path, "ElectraForSequenceClassification" if taught else "BertModel")
    teacher = load_other_teacher(tmp_path)
    assert teacher is not None
    student = make_student(teacher, small(vocabulary), 2)
    assert compares_texts_only(teacher, student)
    assert (student.task is not None) == taught
    said = teacher_targets(teacher, [Example([one]) for one in teacher.tokenizer.encode(TEXTS)])
    assert said.shape == (5, 2 if taught else 32)
    encoded = student.tokenizer.encode(TEXTS)
    examples = [Example([one], target=row) for one, row in zip(encoded, said, strict=True)]
    distiller = TextDistiller(student, examples[:1])
    optimizer = torch.optim.Adam(distiller.parameters(), 3e-3)
    batch = collate(examples, student.tokenizer.pad_id)
    first = distiller(batch)
    assert set(first) == {"loss", "answers" if taught else "vectors"}
    for _ in range(60):
        optimizer.zero_grad()
        loss = distiller(batch)["loss"]
        loss.backward()
        optimizer.step()
    assert loss.item() < first["loss"].item() / 3
    student.sentence_map = distiller.sentence_map
    if taught:
        found = [list(one.probabilities.values()) for one in student.predict(TEXTS)]
        np.testing.assert_allclose(found, torch.tensor(said).softmax(-1), atol=0.1)
    else:
        off = ((student.embed(TEXTS) - said) ** 2).sum() / (said**2).sum()
        np.testing.assert_allclose(off, distiller.eval()(batch)["loss"].item(), rtol=1e-3)
    assert distiller(batch, 1)["loss"] != distiller(batch)["loss"]  # after fewer passes


def test_what_cannot_teach_is_told(tmp_path: Path, vocabulary: Any) -> None:
    make_bert(tmp_path / "tags", "ElectraForTokenClassification")
    with pytest.raises(ConfigError, match="was taught tag, and we learn that from BERTs alone"):
        load_other_teacher(tmp_path / "tags")
    make_bert(tmp_path / "bert tags", "BertForTokenClassification")
    tagger = load_other_teacher(tmp_path / "bert tags")
    assert tagger is not None
    with pytest.raises(ConfigError, match="tag is about single tokens"):
        make_student(tagger, small(vocabulary), 2)
    make_bert(tmp_path / "damaged", "ElectraModel")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        load_other_teacher(tmp_path / "damaged")


def test_a_model_with_a_decoder_does_not_teach(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 20}
    transformers.BartModel(transformers.BartConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="BartModel is no encoder of texts alone"):
        load_other_teacher(tmp_path)


def test_a_head_of_another_teacher_begins_anew(tmp_path: Path, vocabulary: Any) -> None:
    make_bert(tmp_path, "ElectraForSequenceClassification")
    teacher = load_other_teacher(tmp_path)
    assert teacher is not None
    task = make_student(teacher, small(vocabulary, Classify(["a", "b"])), 2).task
    assert isinstance(task, Classify)
    assert task.labels == ["LABEL_0", "LABEL_1"]
