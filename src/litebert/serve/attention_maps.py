"""What happens between the first pass and the last: who looks at whom, and what the answer would be so far.

Shapes: T tokens, N heads, D channels per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from litebert.errors import DataError
from litebert.fewshot import Adapted
from litebert.inference import Model
from litebert.inference.records import as_record
from litebert.model.albert import _linear
from litebert.model.attention import Dense
from litebert.serve.engine import temporary_depth
from litebert.serve.limits import ApiError
from litebert.tasks import Mask, Task

MOST_TOKENS = 64
DIGITS = 3


def look_inside(model: Model, text: str) -> dict[str, Any]:
    """Tokens, the attention of every head in every pass, and the answer after each."""
    encoding = model.tokenizer.encode([text])[0]
    if len(encoding.ids) > MOST_TOKENS:
        raise ApiError(
            400, f"text: {len(encoding.ids)} tokens; inside shows up to {MOST_TOKENS}: shorten it", param="text"
        )
    ids = torch.tensor([encoding.ids], device=model.device)
    seen = attention_of(model, ids)
    return {
        "tokens": encoding.tokens, "depths": len(seen), "heads": model.config.num_attention_heads,
        "attention": [[_rounded(head) for head in depth] for depth in seen],
        "by_depth": by_depth(model, text),
    }  # fmt: skip


def attention_of(model: Model, ids: Tensor) -> list[Tensor]:  # of (N, T, T)
    """The shares in which each token takes from the others, for every block of every pass."""
    encoder, found = model.encoder, []
    original = encoder.run_block

    def looking(attention: Any, ffn: Any, hidden: Tensor, layout: Dense, bias: Tensor | None, *rest: Any) -> Tensor:
        seen = rest[1] if len(rest) > 1 else None
        qkv = _linear(attention.qkv, hidden.float(), seen, "qkv").unflatten(-1, (3, attention.num_heads, -1))
        q, k, _ = qkv.unbind(-3)  # (T, N, D) each
        scores = torch.einsum("inc,jnc->nij", q, k) / q.shape[-1] ** 0.5
        found.append((scores if bias is None else scores + bias).softmax(-1))
        return original(attention, ffn, hidden, layout, bias, *rest)

    encoder.run_block = looking
    try:
        with torch.inference_mode():
            model.albert.eval()
            encoder.after_passes([model.passes], ids)
    finally:
        encoder.run_block = original
    return found


def by_depth(model: Model, text: str) -> list[dict[str, Any]]:
    """The answer if the model stopped after each pass; nothing where it has none to give for a text alone."""
    task = model.task
    if task is None or task.own_depths or isinstance(model, Adapted) or not _can_answer(model, task, text):
        return []
    answers = []
    for depth in range(1, model.passes + 1):
        with temporary_depth(model, depth):
            answers.append({"depth": depth, "answer": as_record(model.predict([text])[0])})
    return answers


def _can_answer(model: Model, task: Task[Any, Any], text: str) -> bool:
    if isinstance(task, Mask) and model.tokenizer.specials["mask"] not in text:
        return False
    try:
        task.features([task.parse(text, "text")], model.tokenizer, model.max_length)
    except DataError:
        return False
    return True


def _rounded(rows: Tensor) -> list[list[float]]:
    return [[round(value, DIGITS) for value in row] for row in rows.tolist()]
