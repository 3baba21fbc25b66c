"""From a BERT to an ALBERT: smaller tables of embeddings, and one layer for all passes, as near as a start can be.

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

TABLES = ("word_embeddings", "segment_embeddings", "position_embeddings")
UNSEEN = 0.01
"""How much the tables as a whole count beside the tokens of the text, which does not have every word."""
RIDGE = 1e-3
"""How strongly the projection keeps to the formula, relative to what the tokens say."""


@torch.no_grad()
def albert_of(bert: Model, batches: Sequence[Batch], embedding_size: int, passes: int) -> Model:
    """An ALBERT without heads that begins near a BERT; its embeddings are fitted to the tokens of these texts."""
    hidden = bert.config.hidden_size
    if not 2 <= embedding_size <= hidden:
        raise ConfigError(f"embedding_size={embedding_size} must lie between 2 and the {hidden} of the BERT's states")
    shape = replace(
        bert.config, embedding_size=embedding_size, num_hidden_layers=passes, sharing="all", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = Model(Albert(shape).eval(), bert.tokenizer, None, bert.max_length)
    model.source = bert.source
    factorise(bert.encoder, model.encoder, batches)
    for ours, theirs in ((model.encoder.attention, bert.encoder.attention), (model.encoder.ffn, bert.encoder.ffn)):
        states = [block.state_dict() for block in theirs]
        ours[0].load_state_dict({name: torch.stack([one[name] for one in states]).mean(0) for name in states[0]})
    model.encoder.pooler.load_state_dict(bert.encoder.pooler.state_dict())
    return model


@torch.no_grad()
def factorise(bert: Encoder, encoder: Encoder, batches: Sequence[Batch]) -> None:
    """Give an encoder tables of size E, and a projection, with which it embeds these tokens nearly as the BERT does.

    LayerNorm takes the mean and the length off a vector. E - 1 directions of H, laid into the E numbers such that those
    sum to 0, keep both, and so LayerNorm does at size E what it did at size H. A BERT whose tables have no more
    directions than that embeds exactly the same afterwards.
    """
    hidden, size, eps = bert.config.hidden_size, encoder.config.embedding_size, bert.config.layer_norm_eps
    tables = [getattr(bert, name).weight.double() for name in TABLES]
    tables = [table - table.mean(1, keepdim=True) for table in tables]
    spread = UNSEEN * torch.stack([_shares(table.T @ table) for table in tables]).mean(0)  # (H, H)
    seen = torch.zeros_like(spread)
    for batch in batches:
        rows = F.normalize(_sums(tables, batch))
        seen += rows.T @ rows
    directions = torch.linalg.eigh(spread + _shares(seen)).eigenvectors[:, 1 - size :]  # (H, E - 1), the strongest
    inwards = directions @ _summing_to_zero(size).T  # (H, E)
    for name, table in zip(TABLES, tables, strict=True):
        getattr(encoder, name).weight.copy_(table @ inwards)
    nn.init.ones_(encoder.embedding_norm.weight)
    nn.init.zeros_(encoder.embedding_norm.bias)
    gain, bias = (one.double() for one in (bert.embedding_norm.weight, bert.embedding_norm.bias))
    formula = torch.cat([math.sqrt(hidden / size) * inwards * gain[:, None], bias[:, None]], 1)  # (H, E + 1)
    # what was cut off is made good in part by what is left
    square, missing = torch.zeros(size + 1, size + 1).double(), torch.zeros(size + 1, hidden).double()
    for batch in batches:
        rows = _sums(tables, batch)
        read = F.pad(F.layer_norm(rows @ inwards, (size,), eps=eps), (0, 1), value=1.0)  # (T, E + 1)
        wanted = F.layer_norm(rows, (hidden,), eps=eps) * gain + bias
        square += read.T @ read
        missing += read.T @ (wanted - read @ formula.T)
    pull = RIDGE * square.trace().clamp_min(1e-30) / len(square) * torch.eye(len(square)).double()
    found = formula + torch.linalg.solve(square + pull, missing).T
    encoder.project.weight.copy_(found[:, :-1])
    encoder.project.bias.copy_(found[:, -1])


def _sums(tables: Sequence[Tensor], batch: Batch) -> Tensor:  # (T, H)
    """What the tables say of the real tokens, in all."""
    words, segments, positions = tables
    columns = torch.arange(batch.input_ids.shape[1])
    return (words[batch.input_ids] + segments[batch.token_type_ids] + positions[columns])[batch.real]


def _shares(square: Tensor) -> Tensor:
    return square / square.trace().clamp_min(1e-30)


def _summing_to_zero(size: int) -> Tensor:  # (E, E - 1)
    """An orthonormal basis of the vectors whose numbers sum to 0."""
    first = torch.ones(size, 1).double()
    return torch.linalg.qr(torch.cat([first, torch.eye(size).double()[:, 1:]], 1)).Q[:, 1:]
