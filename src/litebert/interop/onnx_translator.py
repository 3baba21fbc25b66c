"""A translator as two ONNX graphs: one encodes the source, the other decodes the next token of the target.

Shapes: S sequences, L columns of the source, T tokens written so far, N heads, D size of the decoder, V vocabulary of
the target, P layers of the decoder. What the second graph gives as `written_now` is `written` at the next token; before
the first it has no columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.interop.onnx import INPUTS, MAX_SEQUENCES, export_graph, run_session
from litebert.model import Albert
from litebert.model.decoder import Cache, Decoder, additive_mask
from litebert.tasks.base import Scores, states_after

ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"


class TranslatorEncoder(nn.Module):
    """Source ids to the keys and values that each layer of the decoder attends to."""

    def __init__(self, albert: Albert, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = albert.encoder, decoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Scores:
        batch = Batch(input_ids, attention_mask.bool(), token_type_ids)
        states = states_after(self.encoder, batch, self.decoder.config.depths)
        return {"source": packed(self.decoder.begin(self.decoder.memory(states, batch.real), batch.real).sources)}


class TranslatorDecoder(nn.Module):
    """One decoding step: the next token's scores for every sequence."""

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


def encoder_graph(module: TranslatorEncoder, max_length: int) -> Any:
    real = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    inputs = dict(zip(INPUTS, (torch.ones_like(real), real, torch.zeros_like(real)), strict=True))
    axes = {0: torch.export.Dim("batch", max=MAX_SEQUENCES), 1: torch.export.Dim("length", max=max_length)}
    return export_graph(module, inputs, dict.fromkeys(INPUTS, axes))


def decoder_graph(module: TranslatorDecoder, max_length: int) -> Any:
    config = module.decoder.config
    layer = (config.layers, 2, 2, config.heads)
    size = config.hidden_size // config.heads
    inputs = {
        "ids": torch.tensor([1, 2]), "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
        "source": torch.randn(*layer, 9, size), "written": torch.randn(*layer, 3, size),
    }  # fmt: skip
    batch = torch.export.Dim("batch", max=MAX_SEQUENCES)
    length, place = torch.export.Dim("length", max=max_length), torch.export.Dim("place", max=MAX_SEQUENCES)
    shapes = {"ids": {0: batch}, "attention_mask": {0: batch, 1: length}, "source": {2: batch, 4: length},
              "written": {2: batch, 4: place}}  # fmt: skip
    return export_graph(module, inputs, shapes)


class OnnxDecoder:
    """A decoder computed by two sessions of ONNX Runtime, with the interface that beam search needs. Its memory is the
    keys and values of the source, a row for each sequence."""

    def __init__(self, decoder: Decoder, encoder_session: Any, decoder_session: Any) -> None:
        self.config, self.encoder_session, self.decoder_session = decoder.config, encoder_session, decoder_session

    def memory(self, batch: Batch) -> Tensor:  # (S, P, 2, N, L, D / N)
        return run_session(self.encoder_session, batch)["source"].permute(2, 0, 1, 3, 4, 5)

    def begin(self, memory: Tensor, real: Tensor) -> Cache:
        sources = unpacked(memory.permute(1, 2, 0, 3, 4, 5))
        empty = sources[0][0][:, :, :0]
        return Cache(sources, additive_mask(real), [(empty, empty)] * len(sources))

    def step(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        inputs = {
            "ids": ids, "attention_mask": (cache.padding_bias[:, 0, 0] == 0).long(), "source": packed(cache.sources),
            "written": packed(cache.written),
        }  # fmt: skip
        outputs = self.decoder_session.run(
            ["scores", "looks", "written_now"], {name: tensor.numpy() for name, tensor in inputs.items()}
        )
        scores, looks, written = map(torch.from_numpy, outputs)
        cache.written = unpacked(written)
        return scores, looks
