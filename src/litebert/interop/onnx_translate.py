"""A translator as two graphs: one reads the source, the other writes the next token of the target.

Shapes: S sequences, L columns of the source, T tokens written so far, N heads, D size of the decoder, V vocabulary of
the target, P layers of the decoder. What the second graph gives as `written_now` is `written` at the next token; before
the first it has no columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.interop.onnx import INPUTS, MOST_SEQUENCES, graph_from
from litebert.model import Albert
from litebert.model.decoder import Cache, Decoder, additive_mask
from litebert.tasks.base import Scores, states_after

READS, WRITES = "encoder.onnx", "decoder.onnx"


class Reads(nn.Module):
    """The encoder, and what the decoder attends to: keys and values of the source for each of its layers."""

    def __init__(self, albert: Albert, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = albert.encoder, decoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Scores:
        batch = Batch(input_ids, attention_mask.bool(), token_type_ids)
        states = states_after(self.encoder, batch, self.decoder.config.depths)
        return {"source": packed(self.decoder.begin(self.decoder.memory(states, batch.real), batch.real).sources)}


class Writes(nn.Module):
    """One token more of every sequence."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor, attention_mask: Tensor, source: Tensor, written: Tensor) -> Scores:
        cache = Cache(unpacked(source), additive_mask(attention_mask.bool()), unpacked(written))
        scores, looks = self.decoder.step(ids, cache)
        return {"scores": scores, "looks": looks, "written_now": packed(cache.written)}


def packed(layers: list[tuple[Tensor, Tensor]]) -> Tensor:  # (P, 2, S, N, T or L, D / N)
    return torch.stack([torch.stack(both) for both in layers])


def unpacked(tensor: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(both[0], both[1]) for both in tensor]


def reading_graph(module: Reads, max_length: int) -> Any:
    real = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    given = dict(zip(INPUTS, (torch.ones_like(real), real, torch.zeros_like(real)), strict=True))
    axes = {0: torch.export.Dim("batch", max=MOST_SEQUENCES), 1: torch.export.Dim("length", max=max_length)}
    return graph_from(module, given, dict.fromkeys(INPUTS, axes))


def writing_graph(module: Writes, max_length: int) -> Any:
    config = module.decoder.config
    layer = (config.layers, 2, 2, config.heads)
    size = config.hidden_size // config.heads
    given = {
        "ids": torch.tensor([1, 2]), "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
        "source": torch.randn(*layer, 9, size), "written": torch.randn(*layer, 3, size),
    }  # fmt: skip
    batch = torch.export.Dim("batch", max=MOST_SEQUENCES)
    length, place = torch.export.Dim("length", max=max_length), torch.export.Dim("place", max=MOST_SEQUENCES)
    shapes = {"ids": {0: batch}, "attention_mask": {0: batch, 1: length}, "source": {2: batch, 4: length},
              "written": {2: batch, 4: place}}  # fmt: skip
    return graph_from(module, given, shapes)


class Sessions:
    """A decoder that two sessions of ONNX Runtime compute, for `search`. What it calls memory is the keys and values of
    the source, a row for each sequence."""

    def __init__(self, decoder: Decoder, reads: Any, writes: Any) -> None:
        self.config, self.reads, self.writes = decoder.config, reads, writes

    def memory(self, batch: Batch) -> Tensor:  # (S, P, 2, N, L, D / N)
        tensors = (batch.input_ids, batch.real.long(), batch.token_type_ids)
        wanted = {one.name for one in self.reads.get_inputs()}  # a graph may have no use for one of them
        given = {name: one.numpy() for name, one in zip(INPUTS, tensors, strict=True) if name in wanted}
        return torch.from_numpy(self.reads.run(["source"], given)[0]).permute(2, 0, 1, 3, 4, 5)

    def begin(self, memory: Tensor, real: Tensor) -> Cache:
        sources = unpacked(memory.permute(1, 2, 0, 3, 4, 5))
        empty = sources[0][0][:, :, :0]
        return Cache(sources, additive_mask(real), [(empty, empty)] * len(sources))

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        given = {
            "ids": ids, "attention_mask": (cache.padding_bias[:, 0, 0] == 0).long(), "source": packed(cache.sources),
            "written": packed(cache.written),
        }  # fmt: skip
        found = self.writes.run(["scores", "looks", "written_now"], {name: one.numpy() for name, one in given.items()})
        scores, looks, written = map(torch.from_numpy, found)
        cache.written = unpacked(written)
        return scores, looks
