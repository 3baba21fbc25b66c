"""Compare the speed and memory of litebert and transformers on this machine.

Examples:
  litebert bench
  litebert bench infer --preset small --out runs/bench
  litebert bench pretrain --data shards --length 128 512

Rounds alternate between the contenders, which have the same precision, weights and texts. Exceptions: in pretrain the
others get random sequences without padding, and with --precision fp8 they run in bf16. Tokens per second do not count
padding. FLOP/s, by the model's formula, are compared with a large matrix product (in bf16 where litebert has fp8).
"""

from __future__ import annotations

import json

from litebert.console import make_console, say
from litebert.errors import require_extra
from litebert.run_folder import refuse_overwrite
from litebert.studies.benchmark.config import BenchmarkConfig as Config

__all__ = ["Config", "run"]


def run(config: Config) -> None:
    from rich.console import Console

    from litebert.studies.benchmark.report import write_page
    from litebert.studies.benchmark.runner import NOISE_NOTE, is_noisy, result_table, run_benchmark

    if config.out is not None:
        refuse_overwrite(config.out / "bench.json", "a benchmark")
    require_extra("transformers", "peers")
    console = make_console()
    summary, results = run_benchmark(config, console)
    if config.json:
        print(json.dumps(summary))
    else:
        out = Console()
        peaks = summary["matmul_operations_per_second"].items()
        rates = ", ".join(f"{rate / 1e12:.3g} TFLOP/s in {dtype}" for dtype, rate in peaks)
        say(out, f"{summary['machine']}: a large matrix product reaches {rates}")
        out.print(result_table(results))
        if is_noisy(results):
            say(out, NOISE_NOTE)
    if config.out is not None:
        write_page(config.out, summary, results)
        say(console, f"look at {config.out / 'report.html'}")
