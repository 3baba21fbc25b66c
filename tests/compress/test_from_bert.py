"""From a BERT to an ALBERT, as it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from litebert.compress.from_bert import albert_from_bert
from litebert.compress.students import Distiller, fold_map_into_head, make_student
from litebert.compress.teachers import load_bert_teacher
from litebert.data.batches import Batch, Example, collate
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.tasks.base import hidden_states
from tests.interop.berts import make_bert

TEXTS = ["the order was late", "thanks", "where is the money now", "great help", "love is bad", "abc def ghi"]
UNREAD = ["xyz jkl uvw", "now now now the thanks back"]


def batch_of(model: Model, texts: list[str]) -> Batch:
    return collate([Example([one]) for one in model.tokenizer.encode(texts)], model.tokenizer.pad_id)


def make_simple(bert: Model, directions: int | None = None) -> Model:
    """One whose layers are all the first, and whose tables lie in so few directions, beside their means."""
    with torch.no_grad():
        for blocks in (bert.encoder.attention, bert.encoder.ffn):
            for block in blocks:
                block.load_state_dict(blocks[0].state_dict())
        hidden = bert.config.hidden_size
        basis = torch.randn(hidden, hidden, dtype=torch.double)[:, :directions]
        basis = torch.linalg.qr(basis - basis.mean(0)).Q
        for name in ("word_embeddings", "position_embeddings", "segment_embeddings"):
            table = getattr(bert.encoder, name).weight
            table.copy_(table.double() @ basis @ basis.T + 0.1 * torch.randn(len(table), 1))
    return bert


def off(bert: Model, albert: Model, texts: list[str]) -> float:
    """Of the embeddings, as a share of their length, squared."""
    batch = batch_of(bert, texts)
    with torch.no_grad():
        wanted, found = (
            one.encoder.hidden_states_at([0], batch.input_ids, None, batch.token_type_ids)[0][batch.real]
            for one in (bert, albert)
        )
    return float((found - wanted).square().sum() / wanted.square().sum())


def test_a_simple_bert_becomes_the_same_in_fewer_parameters(tmp_path: Path) -> None:
    make_bert(tmp_path)
    bert = make_simple(load_bert_teacher(tmp_path), 7)
    albert = albert_from_bert(bert, [batch_of(bert, TEXTS)], 8, 3)
    assert albert.config.embedding_size == 8
    assert len(albert.encoder.attention) == 1
    for texts in (TEXTS, UNREAD):  # words that the texts do not have, too
        batch = batch_of(bert, texts)
        with torch.no_grad():
            wanted, found = (hidden_states(one.encoder, batch) for one in (bert, albert))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(albert.encoder.pool(found[:, 0]), bert.encoder.pool(wanted[:, 0]), atol=1e-5, rtol=0)


def test_what_is_cut_off_is_what_the_texts_need_least(tmp_path: Path) -> None:
    make_bert(tmp_path)
    bert = load_bert_teacher(tmp_path)
    sizes = [off(bert, albert_from_bert(bert, [batch_of(bert, TEXTS)], size, 3), TEXTS) for size in (4, 8, 16, 32)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-6
    assert sizes[1] < 1 - 7 / 31  # better than any directions by chance
    other = albert_from_bert(bert, [batch_of(bert, UNREAD)], 8, 3)
    assert off(bert, other, TEXTS) > 1.2 * sizes[1]


def test_the_layer_is_the_mean_of_all(tmp_path: Path) -> None:
    make_bert(tmp_path)
    bert = load_bert_teacher(tmp_path)
    albert = albert_from_bert(bert, [batch_of(bert, TEXTS)], 16, 2)
    assert albert.passes == 2
    assert albert.config.hidden_dropout_prob == 0
    mean = torch.stack([block.widen.weight for block in bert.encoder.ffn]).mean(0)
    torch.testing.assert_close(albert.encoder.ffn[0].widen.weight, mean)


def test_the_map_of_states_is_fitted_and_read_through(tmp_path: Path) -> None:
    make_bert(tmp_path, "BertForSequenceClassification")
    bert = load_bert_teacher(tmp_path)
    texts = [f"{one} {other}" for one in TEXTS for other in UNREAD + TEXTS]
    batch = batch_of(bert, texts)
    student = make_student(bert, albert_from_bert(bert, [batch], 16, 3), 3)
    plain = Distiller(student, bert).eval()(batch)
    distiller = Distiller(student, bert, mapped=True)
    distiller.fit_map([batch])
    mapped = distiller.eval()(batch)
    assert mapped["states"] < 0.7 * plain["states"]
    bridge: Any = distiller.bridge
    fold_map_into_head(student, bridge)
    assert distiller(batch)["answers"] < 0.7 * plain["answers"]
    torch.testing.assert_close(distiller(batch)["states"], mapped["states"])


def test_the_map_of_a_student_that_is_the_teacher_is_the_identity(tmp_path: Path) -> None:
    make_bert(tmp_path)
    bert = make_simple(load_bert_teacher(tmp_path))
    distiller = Distiller(
        make_student(bert, albert_from_bert(bert, [batch_of(bert, TEXTS)], 32, 3), 3), bert, mapped=True
    )
    distiller.fit_map([batch_of(bert, TEXTS)])
    bridge: Any = distiller.bridge
    torch.testing.assert_close(bridge.weight.detach(), torch.eye(32), atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [1, 33])
def test_sizes_that_cannot_be_are_refused(size: int, tmp_path: Path) -> None:
    make_bert(tmp_path)
    bert = load_bert_teacher(tmp_path)
    with pytest.raises(ConfigError, match=f"embedding_size={size} must lie between 2 and the 32"):
        albert_from_bert(bert, [batch_of(bert, TEXTS)], size, 3)
