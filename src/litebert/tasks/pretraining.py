"""ALBERT's pre-training objective, masked tokens and sentence order; growing a model during pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litebert.data.pretraining import PretrainingBatch
from litebert.model import Albert, AlbertConfig, Encoder, MaskedTokenHead, pretraining_heads
from litebert.model.backends.base import has_triton
from litebert.model.backends.token_loss import token_losses


class PretrainingObjective(nn.Module):
    """Losses and accuracies of a batch.

    Sums are divided by the counts of the whole step, so that the figures of its micro-batches and ranks add up to the
    figures of the step, however it was split.
    """

    def __init__(self, albert: Albert, order_weight: float = 1.0) -> None:
        super().__init__()
        self.albert, self.order_weight = albert, order_weight
        self.score = score_tokens
        """The masked-token loss. Compiled, it never stores the logits in full precision."""

    def forward(
        self, batch: PretrainingBatch, depth: int, longest: int, masked: Tensor, paired: Tensor
    ) -> dict[str, Tensor]:
        """`masked` and `paired`: the number of masked tokens and of pairs in the whole step."""
        encoder = self.albert.encoder
        # the last pass and the vocabulary are computed only at masked tokens and at the start of sequences
        hidden = encoder.packed(
            batch.input_ids, batch.lengths, batch.token_type_ids, depth=depth, longest=longest,
            rows=torch.cat([batch.masked_positions, batch.cls_positions]),
        )  # (M + P, H)  # fmt: skip
        hidden, first = hidden.split([len(batch.masked_positions), len(batch.cls_positions)])
        head: Any = self.albert.heads["mlm"]
        mlm_loss, correct = self.score(head, hidden, encoder.word_embeddings.weight, batch.labels)
        mlm_loss = mlm_loss / masked
        order = self.albert.heads["order"](encoder.pool(first))  # (P, 2)
        order_loss = F.cross_entropy(order.float(), batch.swapped, reduction="sum") / paired
        return {
            "loss": mlm_loss + self.order_weight * order_loss,
            "mlm_loss": mlm_loss.detach(),
            "mlm_accuracy": correct / masked,
            "order_accuracy": (order.detach().argmax(-1) == batch.swapped).sum() / paired,
        }


def score_tokens(head: MaskedTokenHead, hidden: Tensor, table: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss and the number of right answers, for the hidden states (M, H) of the masked tokens."""
    if hidden.dtype == torch.bfloat16 and has_triton(hidden.device):
        return token_losses(head.states(hidden).to(hidden.dtype), table, head.bias, labels)
    logits = head(hidden, table)  # (M, V)
    correct = (logits.detach().argmax(-1) == labels).sum()
    return F.cross_entropy(logits.float(), labels, reduction="sum"), correct


@torch.no_grad()
def stack_layers(albert: Albert, optimizer: torch.optim.Optimizer, before: int, after: int) -> None:
    """Deepen a model from `before` to `after` passes: the new ones start as copies of the old, in the same order.

    Shared layers are there already and nothing is copied. The optimizer's memory of a weight goes with it.
    """
    config, encoder = albert.config, albert.encoder
    for half in ("attention", "ffn"):
        blocks = getattr(encoder, half)
        used = {
            config.block_at(half, layer, inner) for layer in range(before) for inner in range(config.inner_group_num)
        }
        for layer in range(before, after):
            for inner in range(config.inner_group_num):
                new = config.block_at(half, layer, inner)
                if new not in used:
                    used.add(new)
                    _copy_block(blocks[config.block_at(half, layer % before, inner)], blocks[new], optimizer)


def _copy_block(old: nn.Module, new: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    master_of = getattr(optimizer, "master_of", lambda parameter: parameter)  # what the optimizer itself works on
    for source, target in zip(old.parameters(), new.parameters(), strict=True):
        target.copy_(source)
        source, target = master_of(source), master_of(target)
        target.copy_(source)
        if source in optimizer.state:
            copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in optimizer.state[source].items()}
            optimizer.state[target] = copied


@torch.no_grad()
def grow_vocabulary(albert: Albert, vocab_size: int) -> Albert:
    """The same model with a larger vocabulary: new words start at the mean of the old ones."""
    old = albert.config.vocab_size
    grown = Albert(
        replace(albert.config, vocab_size=vocab_size), pretraining_heads(replace(albert.config, vocab_size=vocab_size))
    )
    target = grown.state_dict()
    for name, value in albert.state_dict().items():
        if target[name].shape == value.shape:
            target[name].copy_(value)
        else:
            target[name][:old].copy_(value)
            target[name][old:].copy_(value.mean(dim=0) if value.dim() > 1 else value.min())
    return grown


UNTRAINED_NORM_RATIO = 1 / 3
"""Positions with a norm below this share of the trained ones' median are untrained."""
MIN_TRAINED_POSITIONS = 16
"""Fewer are not extrapolated."""


@torch.no_grad()
def grow_positions(encoder: Encoder, known: int, wanted: int) -> bool:
    """Extrapolate `known` or more trained positions to the untrained ones; False if there are none.

    From their initial values a trained model did not learn new positions in 2,650 steps (docs/log.md).
    """
    table = encoder.position_embeddings.weight
    norms = table.norm(dim=1)
    trained = (norms[:wanted] > UNTRAINED_NORM_RATIO * norms[:known].median()).nonzero()
    known = max(known, int(trained.max()) + 1)  # texts may have been cut shorter since
    if known >= wanted or known < MIN_TRAINED_POSITIONS:
        return False
    edge = max(1, known // 32)  # the last ones have seen little but [SEP]
    table[known - edge : wanted] = extrapolate(table[edge : known - edge], wanted - known + edge).to(table)
    return True


def extrapolate(walk: Tensor, steps: int, share: float = 0.95) -> Tensor:
    """Further rows of a sequence of vectors that rotates a little at every step, as trained positions do.

    The rotation from each row to the next is fitted in the principal components with this share of the variance.
    """
    rows = walk.double()
    centre = rows.mean(dim=0)
    _, sizes, directions = torch.linalg.svd(rows - centre, full_matrices=False)
    held = (sizes.square() / sizes.square().sum().clamp_min(1e-30)).cumsum(0)
    directions = directions[: int((held < share).sum()) + 1]
    projected = (rows - centre) @ directions.T
    left, _, right = torch.linalg.svd(projected[:-1].T @ projected[1:])
    left[:, -1] *= torch.linalg.det(left @ right)  # no reflection
    rotation, last_row, rows_after = left @ right, projected[-1], []
    for _ in range(steps):
        last_row = last_row @ rotation
        rows_after.append(last_row)
    return torch.stack(rows_after) @ directions + centre


def flops_per_token(config: AlbertConfig, depth: float, length: float, mask_rate: float) -> float:
    """Floating-point operations that one token costs in training, forward and backward."""
    hidden, wide = config.hidden_size, config.intermediate_size
    attention = 6 * hidden * hidden + 4 * length * hidden
    rest = 2 * (hidden * hidden + 2 * hidden * wide)
    blocks = depth * config.inner_group_num
    head = 2 * (hidden * config.embedding_size + config.embedding_size * config.vocab_size)
    # after the attention of the last block only the masked tokens go on
    return 3 * (blocks * attention + (blocks - 1 + mask_rate) * rest + mask_rate * head)


def unigram_entropy(ids: Sequence[np.ndarray], most: int = 4_000_000) -> float:
    """The loss of a unigram model: the first plateau of training."""
    counts = np.bincount(np.concatenate([part[: most // len(ids)] for part in ids]))
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
