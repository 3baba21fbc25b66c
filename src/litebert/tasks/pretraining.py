"""The paper's objective: which token was hidden, and were the two segments swapped?"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from litebert.data.pretraining import IGNORED, PretrainingBatch
from litebert.model import Albert


def pretraining_loss(model: Albert, batch: PretrainingBatch, depth: int | None = None) -> dict[str, Tensor]:
    """The sum of both losses, and the share of right answers for each."""
    text = batch.text
    hidden = model.encoder(text.input_ids, text.attention_mask, text.token_type_ids, depth=depth)  # (B, L, H)
    masked = hidden.flatten(0, 1)[batch.positions]  # (M, H): the vocabulary is scored only where something is hidden
    tokens = model.heads["mlm"](masked, model.encoder.word_embeddings.weight)  # (M, V)
    mlm_loss = F.cross_entropy(tokens.float(), batch.labels)
    measured = {"loss": mlm_loss, "mlm_accuracy": (tokens.argmax(-1) == batch.labels).float().mean()}
    paired = batch.swapped != IGNORED
    if paired.any():
        order = model.heads["order"](model.encoder.pool(hidden[:, 0]))[paired]  # (B, 2)
        measured["loss"] = mlm_loss + F.cross_entropy(order.float(), batch.swapped[paired])
        measured["order_accuracy"] = (order.argmax(-1) == batch.swapped[paired]).float().mean()
    return measured


def depth_at(step: int, steps: int, layers: int) -> int:
    """How many passes of the shared layer step `step` runs: a quarter of them (two at least), then half, then all.

    A deep stack of one shared layer started at full depth stays for a long time where it knows only which words are
    frequent; a shallow one leaves that plateau quickly, and because the layer is shared, deepening it copies nothing.
    """
    done = step / steps
    passes = layers // 4 if done < 0.6 else layers // 2 if done < 0.85 else layers
    return min(layers, max(2, passes))
