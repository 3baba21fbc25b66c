"""A little of `bench/fuzz_serve.py`, which sends a hundred thousand, and of `bench/soak_serve.py`, half an hour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, peer


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_malformed_requests_are_refused_and_nothing_breaks(count: int) -> None:
    peer("uvicorn")
    script = [sys.executable, str(REPOSITORY / "bench" / "fuzz_serve.py"), "--requests", str(count), "--growth", "1"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["ready_after"] is True
    assert {"200", "400", "404"} <= set(report["in_process"])
    assert sum(report["in_process"].values()) + sum(report["over_socket"].values()) >= count
    assert done.returncode == 0


@pytest.mark.slow
def test_a_soak_goes_through_all_endpoints(folders: dict[str, Path]) -> None:
    peer("uvicorn")
    flags = ["--model", str(folders["mask"]), "--minutes", "0.3", "--rate", "1000", "--growth", "10"]
    script = [sys.executable, str(REPOSITORY / "bench" / "soak_serve.py"), *flags]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    asked = " ".join(report["by_endpoint"])
    for path in (
        "/v1/embeddings",
        "/similarity",
        "/v1/rerank",
        "/fill-mask",
        "/predict/mask",
        "/search/ID",
        "/adapt/ID",
    ):
        assert f"{path} 200" in asked
    assert report["requests"] > 50
    assert done.returncode == 0
