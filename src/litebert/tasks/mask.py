"""Which tokens fit the gaps?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from litebert.data.batches import Batch
from litebert.errors import DataError
from litebert.model import Albert, AlbertConfig, MaskedTokenHead
from litebert.tasks.base import Task
from litebert.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True, slots=True)
class MaskInput:
    """A text with one or more mask tokens."""

    text: str
    where: str = field(default="text", compare=False, repr=False)
    """The file and line it came from, for errors."""


@dataclass(frozen=True, slots=True)
class Fill:
    """One way to fill one mask."""

    token: str
    probability: float
    text: str
    """The whole text with this mask filled."""


@dataclass(frozen=True, slots=True)
class MaskOutput:
    """For each mask of the text, the likeliest fillings, best first."""

    masks: list[list[Fill]]


class Mask(Task[MaskInput, MaskOutput]):
    """The pre-training head, asked."""

    name = "mask"
    architecture = "AlbertForMaskedLM"
    head_name = "mlm"

    def __init__(self, top: int = 5) -> None:
        self.top = top

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Mask:
        return cls()

    def settings(self) -> dict[str, Any]:
        return {}

    def head(self, config: AlbertConfig) -> nn.Module:
        return MaskedTokenHead(config)

    def parse(self, item: Any, where: str) -> MaskInput:
        text = item.get("text") if isinstance(item, Mapping) else item
        if not isinstance(text, str):
            raise DataError(f"{where}: {str(item)[:40]!r} must be a string, or an object with 'text'")
        return MaskInput(text, where)

    def encode(self, inputs: Sequence[MaskInput], tokenizer: Tokenizer, max_length: int) -> list[Encoding]:
        encodings = tokenizer.encode([example.text for example in inputs], max_length=max_length)
        for example, encoding in zip(inputs, encodings, strict=True):
            if tokenizer.mask_id not in encoding.ids:
                mask = tokenizer.specials["mask"]
                raise DataError(
                    f"{example.where}: {example.text[:60]!r} has no {mask} in its first {max_length} tokens; "
                    f"put {mask} where a word is missing"
                )
        return encodings

    def answer(
        self, model: Albert, batch: Batch, inputs: Sequence[MaskInput], tokenizer: Tokenizer
    ) -> list[MaskOutput]:
        hidden = model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        rows, columns = (batch.input_ids == tokenizer.mask_id).nonzero(as_tuple=True)
        scores = model.heads[self.head_name](hidden[rows, columns], model.encoder.word_embeddings.weight)
        best = scores.float().softmax(-1).topk(min(self.top, scores.shape[-1]))
        masks: list[list[list[Fill]]] = [[] for _ in inputs]
        for row, column, values, numbers in zip(
            rows.tolist(), columns.tolist(), best.values.tolist(), best.indices.tolist(), strict=True
        ):
            ids = batch.input_ids[row].tolist()
            masks[row].append(
                [_fill(ids, column, number, value, tokenizer) for number, value in zip(numbers, values, strict=True)]
            )
        return [MaskOutput(fills) for fills in masks]


def _fill(ids: list[int], column: int, number: int, probability: float, tokenizer: Tokenizer) -> Fill:
    frame = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    filled = [number if at == column else x for at, x in enumerate(ids) if at == column or x not in frame]
    return Fill(tokenizer.token(number), probability, tokenizer.decode(filled, skip_special=False))
