"""Do the attention implementations agree on a GPU, and what do they cost?

    PYTHONPATH=src python bench/attention.py

The variable-length kernel exists on GPUs in half precision only, so this is a script and not a test. The
error of each against float32 must stay within twice the error that SDPA has in bf16; otherwise it exits with 1.
"""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table

from litebert.model import Encoder, preset
from litebert.model.attention import AttentionImplementation

LENGTHS = [512, 300, 128, 77, 16, 1, 450, 211, 64, 350]
REPEATS = 20


def run(
    encoder: Encoder, implementation: AttentionImplementation, ids: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of packed sequences, and the gradient of the fused q, k, v matrix."""
    encoder.attention_implementation = implementation
    encoder.zero_grad()
    hidden = encoder.packed(ids, lengths)
    (hidden.float() * torch.linspace(-1, 1, hidden.numel(), device=hidden.device).view_as(hidden)).sum().backward()
    gradient = encoder.get_parameter("attention.0.qkv.weight").grad
    assert gradient is not None
    return hidden.detach().float(), gradient.detach().float()


def milliseconds(
    encoder: Encoder, implementation: AttentionImplementation, ids: torch.Tensor, lengths: torch.Tensor
) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        run(encoder, implementation, ids, lengths)
    start.record()
    for _ in range(REPEATS):
        run(encoder, implementation, ids, lengths)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPEATS


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU here: these kernels run on a GPU only")
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    lengths = torch.tensor(LENGTHS, device="cuda")
    ids = torch.randint(5, 30000, (int(lengths.sum()),), device="cuda")
    table = Table(
        title=f"ALBERT-base, {len(LENGTHS)} sequences packed, forward and backward, {torch.cuda.get_device_name()}"
    )
    for column in ("attention bias", "implementation", "hidden error", "gradient error", "ms", "verdict"):
        table.add_column(
            column, justify="left" if column in ("attention bias", "implementation", "verdict") else "right"
        )
    fine = True
    for distance in (0, 32):
        torch.manual_seed(0)
        reference = Encoder(preset("base", relative_attention_distance=distance)).cuda()
        if reference.relative_bias is not None:
            torch.nn.init.normal_(reference.relative_bias, std=0.5)
        exact, exact_gradient = run(reference, "eager", ids, lengths)
        half = Encoder(reference.config).cuda()
        half.load_state_dict(reference.state_dict())
        half.bfloat16()
        limit = (0.0, 0.0)
        implementations: tuple[AttentionImplementation, ...] = (
            ("sdpa", "eager", "varlen") if not distance else ("sdpa", "eager")
        )
        for implementation in implementations:
            hidden, gradient = run(half, implementation, ids, lengths)
            error = float((hidden - exact).norm() / exact.norm())
            gradient_error = float((gradient - exact_gradient).norm() / exact_gradient.norm())
            if implementation == "sdpa":
                limit = 2 * error, 2 * gradient_error
            good = error <= limit[0] and gradient_error <= limit[1]
            fine &= good
            cost = milliseconds(half, implementation, ids, lengths)
            name = "relative, 32" if distance else "none"
            table.add_row(
                name,
                implementation,
                f"{error:.2e}",
                f"{gradient_error:.2e}",
                f"{cost:.2f}",
                "agrees" if good else "DIFFERS",
            )
    Console(width=110).print(table)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
