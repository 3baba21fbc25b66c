"""Initialize an ALBERT from a BERT: factorized embeddings, and one layer, the mean of the BERT's, for all passes.

Shapes: V rows of a table, T tokens of real text, H hidden, E embedding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.errors import ConfigError
from litebert.inference import Model
from litebert.model import Albert, Encoder

EMBEDDING_TABLES = ("word_embeddings", "segment_embeddings", "position_embeddings")
TABLE_WEIGHT = 0.01
"""Weight of the whole embedding tables beside the tokens of the text, which lacks many words."""
RIDGE_PENALTY = 1e-3
"""Ridge penalty that keeps the projection near the closed form."""


@torch.no_grad()
def albert_from_bert(bert: Model, batches: Sequence[Batch], embedding_size: int, passes: int) -> Model:
    """An ALBERT without heads, initialized from a BERT; its embeddings are fitted to the tokens of these texts."""
    hidden = bert.config.hidden_size
    if not 2 <= embedding_size <= hidden:
        raise ConfigError(f"embedding_size={embedding_size} must lie between 2 and the {hidden} of the BERT's states")
    shape = replace(
        bert.config, embedding_size=embedding_size, num_hidden_layers=passes, sharing="all", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = Model(Albert(shape).eval(), bert.tokenizer, None, bert.max_length)
    model.source = bert.source
    factorize_embeddings(bert.encoder, model.encoder, batches)
    for ours, theirs in ((model.encoder.attention, bert.encoder.attention), (model.encoder.ffn, bert.encoder.ffn)):
        states = [block.state_dict() for block in theirs]
        ours[0].load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    model.encoder.pooler.load_state_dict(bert.encoder.pooler.state_dict())
    return model


@torch.no_grad()
def factorize_embeddings(bert: Encoder, encoder: Encoder, batches: Sequence[Batch]) -> None:
    """Give an encoder tables of size E, and a projection, with which it embeds these tokens nearly as the BERT does.

    LayerNorm takes the mean and the length off a vector. E - 1 directions of H, laid into the E numbers such that those
    sum to 0, keep both, and so LayerNorm does at size E what it did at size H. A BERT whose tables have no more
    directions than that embeds exactly the same afterwards.
    """
    hidden, size, eps = bert.config.hidden_size, encoder.config.embedding_size, bert.config.layer_norm_eps
    tables = [getattr(bert, name).weight.double() for name in EMBEDDING_TABLES]
    tables = [table - table.mean(1, keepdim=True) for table in tables]
    spread = TABLE_WEIGHT * torch.stack([_normalize_trace(table.T @ table) for table in tables]).mean(0)  # (H, H)
    seen = torch.zeros_like(spread)
    for batch in batches:
        rows = F.normalize(_embed_tokens(tables, batch))
        seen += rows.T @ rows
    directions = torch.linalg.eigh(spread + _normalize_trace(seen)).eigenvectors[
        :, 1 - size :
    ]  # (H, E - 1), the strongest
    inwards = directions @ _zero_sum_basis(size).T  # (H, E)
    for name, table in zip(EMBEDDING_TABLES, tables, strict=True):
        getattr(encoder, name).weight.copy_(table @ inwards)
    nn.init.ones_(encoder.embedding_norm.weight)
    nn.init.zeros_(encoder.embedding_norm.bias)
    scale, bias = (parameter.double() for parameter in (bert.embedding_norm.weight, bert.embedding_norm.bias))
    formula = torch.cat([math.sqrt(hidden / size) * inwards * scale[:, None], bias[:, None]], 1)  # (H, E + 1)
    # a ridge regression makes up for part of what was cut off
    square, missing = torch.zeros(size + 1, size + 1).double(), torch.zeros(size + 1, hidden).double()
    for batch in batches:
        rows = _embed_tokens(tables, batch)
        read = F.pad(F.layer_norm(rows @ inwards, (size,), eps=eps), (0, 1), value=1.0)  # (T, E + 1)
        wanted = F.layer_norm(rows, (hidden,), eps=eps) * scale + bias
        square += read.T @ read
        missing += read.T @ (wanted - read @ formula.T)
    penalty = RIDGE_PENALTY * square.trace().clamp_min(1e-30) / len(square) * torch.eye(len(square)).double()
    solution = formula + torch.linalg.solve(square + penalty, missing).T
    encoder.project.weight.copy_(solution[:, :-1])
    encoder.project.bias.copy_(solution[:, -1])


def _embed_tokens(tables: Sequence[Tensor], batch: Batch) -> Tensor:  # (T, H)
    """Sums of word, segment and position embeddings of the real tokens."""
    words, segments, positions = tables
    columns = torch.arange(batch.input_ids.shape[1])
    return (words[batch.input_ids] + segments[batch.token_type_ids] + positions[columns])[batch.real]


def _normalize_trace(square: Tensor) -> Tensor:
    return square / square.trace().clamp_min(1e-30)


def _zero_sum_basis(size: int) -> Tensor:  # (E, E - 1)
    """An orthonormal basis of the vectors whose entries sum to 0."""
    first = torch.ones(size, 1).double()
    return torch.linalg.qr(torch.cat([first, torch.eye(size).double()[:, 1:]], 1)).Q[:, 1:]
