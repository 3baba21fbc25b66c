"""A guided demo: text to tokenizer to model to predictions, offline, in a few minutes on two cores.

The text is the documentation inside the Python packages already on this machine; the tasks are sorting 360 support
messages into six queues, marking names in messages and answering questions about orders. With --lang zh the built-in
Chinese model fills hidden words and learns to sort 180 Chinese messages. Everything lands in --out, with a report to
look at.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from litebert.console import make_console, say
from litebert.errors import ConfigError
from litebert.files import atomic_write
from litebert.run_folder import INTERRUPTED, refuse_unwritable
from litebert.studies.demo.config import DemoConfig as Config

__all__ = ["Config", "run"]

MARKER = ".litebert-demo"


def run(config: Config) -> int:
    console = make_console()
    began = time.perf_counter()
    _clear(config.out)
    if config.lang == "zh":
        from litebert.studies.demo.chinese import run_chinese as run_demo
    else:
        from litebert.studies.demo.english import run_english as run_demo
    classifier = run_demo(config, console, began)
    if classifier is None:
        return INTERRUPTED
    console.print(
        f"\n[bold]look at {config.out / 'report.html'}[/bold]  ({time.perf_counter() - began:.0f} s in all)",
        highlight=False,
    )
    text = "我的包裹到哪里了" if config.lang == "zh" else "where is my order"
    say(console, f"next: echo '{text}' | litebert predict --model {classifier}")
    return 0


def _clear(out: Path) -> None:
    """Delete the results of an earlier demo, and nothing else."""
    refuse_unwritable(out)
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise ConfigError(f"{out} holds something that this demo did not make; choose another --out")
        shutil.rmtree(out)
    atomic_write(out / MARKER, "made by litebert demo\n")
