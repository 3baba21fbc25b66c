"""A little of `bench/fuzz_serve.py`, which sends a hundred thousand."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import REPOSITORY, peer


def test_malformed_requests_are_refused_and_nothing_breaks() -> None:
    peer("uvicorn")
    script = [sys.executable, str(REPOSITORY / "bench" / "fuzz_serve.py"), "--requests", "1000", "--growth", "1"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["ready_after"] is True
    assert {"200", "400", "404"} <= set(report["in_process"])
    assert sum(report["in_process"].values()) + sum(report["over_socket"].values()) >= 1000
    assert done.returncode == 0
