"""From token ids to sentence vectors in one call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from litebert.data.batches import Batch
from litebert.errors import DataError
from litebert.model import Albert, Encoder
from litebert.model.backends.native import NativeInt8Backend
from litebert.model.sentence_head import SentenceHead, SentenceMap
from litebert.tasks.base import sentence_vectors
from tests.model.backends.native.cases import (
    LENGTHS,
    enable_native,
    make_encoder,
    needs_native,
    random_ids,
    relative_error,
)

pytestmark = needs_native


def make_head(size: int, hidden: int, **changes: object) -> SentenceHead:
    random = np.random.default_rng(2)
    weight = random.normal(size=(size, hidden)).astype(np.float32)
    made = SentenceMap(weight, random.normal(size=size).astype(np.float32), random.random(100, dtype=np.float32))
    return SentenceHead(replace(made, **changes))


def native_and_torch(encoder: Encoder, head: SentenceHead | None, ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Vectors made in one call, and made by torch from the hidden states."""
    enable_native(encoder)
    albert = Albert(encoder.config, {} if head is None else {SentenceHead.name: head}).eval()
    albert.encoder = encoder
    kinds = (torch.arange(ids.shape[1]) % 3 == 0).long().expand_as(ids)
    batch = Batch(ids, mask, kinds, torch.arange(len(ids)), len(ids))
    with torch.inference_mode():
        vectors = [sentence_vectors(albert, batch)]
        handle = encoder.register_forward_hook(lambda *_: None)  # a hook must see the encoder's output
        vectors.append(sentence_vectors(albert, batch))
        handle.remove()
    return vectors


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 50, "embedding_size": 7},
        {"depth_embedding": True, "inner_group_num": 2},
        {"relative_attention_distance": 8, "num_hidden_groups": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("head", ["none", "map", "length one", "no weights", "zero weights"])
@pytest.mark.parametrize("padded", [False, True])
def test_vectors_made_in_one_call_are_those_of_the_hidden_states(
    shape: dict[str, object], head: str, padded: bool
) -> None:
    encoder = make_encoder(**shape)
    nothing = np.zeros(100, dtype=np.float32)
    changes = {
        "map": {}, "length one": {"of_length_one": True}, "no weights": {"tokens": None},
        "zero weights": {"tokens": nothing},
    }  # fmt: skip
    made = make_head(24, encoder.config.hidden_size, **changes[head]) if head in changes else None
    lengths = torch.tensor(LENGTHS) if padded else torch.full((3,), 37)
    ids = random_ids(len(lengths), int(lengths.max()))
    mask = torch.arange(ids.shape[1]) < lengths[:, None] if padded else None
    vectors, expected = native_and_torch(encoder, made, ids, mask)
    assert torch.equal(vectors, expected) == (head == "zero weights")  # another code path
    assert relative_error(vectors, expected) < 0.01  # a value halfway between two int8 values may round to either


class Doubled(torch.nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    "kind",
    [
        "a hook on the map", "a hook on positions", "a subclass", "bfloat16", "of other passes", "of the first token",
        "not contiguous",
    ],
)  # fmt: skip
def test_other_vectors_are_made_by_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, heard = make_encoder(), []
    head = make_head(
        24, 64, **{"of other passes": {"passes": 2}, "of the first token": {"pooling": "cls"}}.get(kind, {})
    )
    if kind == "a hook on the map":
        head.register_forward_hook(lambda *_: heard.append(1))
    if kind == "a hook on positions":
        encoder.position_embeddings.register_forward_hook(lambda *_: heard.append(1))
    if kind == "a subclass":
        encoder.project.__class__ = Doubled
    if kind == "bfloat16":
        encoder.to(torch.bfloat16)
    if kind == "not contiguous":
        encoder.word_embeddings.weight.data = encoder.word_embeddings.weight.data.T.contiguous().T
    calls: list[bool] = []
    run = NativeInt8Backend._run
    monkeypatch.setattr(
        NativeInt8Backend,
        "_run",
        lambda self, packed, batch: (calls.append(bool(batch.pooling)), run(self, packed, batch)),
    )
    vectors, expected = native_and_torch(encoder, head, random_ids(2, 9), None)
    assert relative_error(vectors, expected) < 1e-5
    assert calls
    assert not any(calls)
    assert bool(heard) == kind.startswith("a hook")


def test_wrong_sizes_are_refused_before_anything_is_read() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    ids, kinds, lengths = random_ids(5), torch.zeros(5, dtype=torch.long), torch.tensor([2, 3])
    with torch.inference_mode():
        with pytest.raises(DataError, match="a linear map of 32 inputs does not fit hidden_size=64"):
            encoder.backend.embed(encoder, ids, lengths, kinds, torch.nn.Linear(32, 8), None)
        with pytest.raises(DataError, match="99 token weights do not fit a vocabulary of 100"):
            encoder.backend.embed(encoder, ids, lengths, kinds, None, torch.ones(99))
        with pytest.raises(DataError, match="4 token_type_ids do not fit 5 input_ids"):
            encoder.backend.embed(encoder, ids, lengths, kinds[:4], None, None)


def test_token_ids_need_not_be_contiguous() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    ids, lengths = random_ids(5), torch.tensor([2, 3])
    with torch.inference_mode():
        expected = encoder.backend.embed(encoder, ids, lengths, torch.zeros(5, dtype=torch.long), None, None)
        apart = torch.stack([ids, ids * 0 + 99], dim=1)[:, 0]
        assert expected is not None
        vectors = encoder.backend.embed(encoder, apart, lengths, torch.zeros(1, dtype=torch.long).expand(5), None, None)
        assert vectors is not None
        assert torch.equal(vectors, expected)


def test_unknown_ids_are_refused() -> None:
    encoder = make_encoder()
    enable_native(encoder)
    ids, kinds = random_ids(1, 5)[0], torch.zeros(5, dtype=torch.long)
    with torch.inference_mode():
        for wrong in (100, -1):
            with pytest.raises(DataError, match="between 0 and 99"):
                encoder.backend.embed(
                    encoder, ids.clone().index_fill(0, torch.tensor([3]), wrong), torch.tensor([5]), kinds, None, None
                )
        with pytest.raises(DataError, match="token_type_ids between 0 and 1"):
            encoder.backend.embed(encoder, ids, torch.tensor([5]), kinds + 2, None, None)
        with pytest.raises(DataError, match="longer than the model's 512"):
            encoder.backend.embed(
                encoder, random_ids(600), torch.tensor([600]), torch.zeros(600, dtype=torch.long), None, None
            )
        with pytest.raises(DataError, match="do not fit 5 rows"):
            encoder.backend.embed(encoder, ids, torch.tensor([3, 3]), kinds, None, None)
    assert (
        encoder.backend.embed(encoder, ids, torch.tensor([5]), kinds, None, None) is None
    )  # outside inference_mode, someone may differentiate
