"""The kernels of a GPU: on one as they are, elsewhere as Triton's interpreter reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch


def test_the_kernels_compute_what_torch_does() -> None:
    triton = pytest.importorskip("triton", reason="Triton comes with torch for GPUs, and with litebert[dev] on Linux")
    interpreted = not torch.cuda.is_available()
    old = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8)
    if interpreted and old and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton's interpreter works with numpy 2.4 from Triton 3.8 on")
    # Triton decides where it is imported whether to interpret, so this needs a new process
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", str(Path(__file__).with_name("kernel_checks.py"))],
        env=os.environ | {"TRITON_INTERPRET": str(int(interpreted))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
