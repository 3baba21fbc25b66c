"""The pre-training objective and the depth ramp."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from litebert.data.batches import Batch
from litebert.data.pretraining import IGNORED, PretrainingBatch
from litebert.predict import Model
from litebert.tasks.pretraining import depth_at, pretraining_loss


def batch_of(swapped: list[int]) -> PretrainingBatch:
    ids = torch.tensor([[2, 9, 4, 3], [2, 4, 8, 3]])
    return PretrainingBatch(
        Batch(ids, None, torch.zeros_like(ids)), torch.tensor([2, 5]), torch.tensor([7, 6]), torch.tensor(swapped)
    )


def test_the_loss_is_the_sum_of_masked_tokens_and_sentence_order(model: Model) -> None:
    batch = batch_of([1, 0])
    measured = pretraining_loss(model.albert, batch)
    hidden = model.encoder(batch.text.input_ids)
    tokens = model.albert.heads["mlm"](hidden, model.encoder.word_embeddings.weight).flatten(0, 1)[[2, 5]]
    order = model.albert.heads["order"](model.encoder.pool(hidden[:, 0]))
    expected = F.cross_entropy(tokens, batch.labels) + F.cross_entropy(order, batch.swapped)
    assert measured["loss"].item() == pytest.approx(expected.item(), abs=1e-6)
    assert measured["order_accuracy"] == (order.argmax(-1) == batch.swapped).float().mean()
    assert measured["mlm_accuracy"] == (tokens.argmax(-1) == batch.labels).float().mean()


def test_sequences_without_a_second_segment_have_no_order_to_learn(model: Model) -> None:
    neither = pretraining_loss(model.albert, batch_of([IGNORED, IGNORED]))
    assert "order_accuracy" not in neither
    one = pretraining_loss(model.albert, batch_of([IGNORED, 1]))
    assert one["loss"] > neither["loss"]


def test_depth_changes_the_loss(model: Model) -> None:
    shallow, deep = (pretraining_loss(model.albert, batch_of([1, 0]), depth)["loss"] for depth in (1, 3))
    assert shallow != deep


@pytest.mark.parametrize(("layers", "expected"), [(12, [3, 6, 12]), (4, [2, 2, 4]), (24, [6, 12, 24]), (1, [1, 1, 1])])
def test_depth_grows_from_a_quarter_over_half_to_all(layers: int, expected: list[int]) -> None:
    assert [depth_at(step, 100, layers) for step in (0, 60, 85)] == expected
    depths = [depth_at(step, 100, layers) for step in range(100)]
    assert depths == sorted(depths)
    assert depths[-1] == layers
