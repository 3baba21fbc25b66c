"""The scripts of examples/."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_texts_of_test_sets_are_gathered_from_every_kind_of_file(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    (tasks / "train").mkdir(parents=True)
    for name, content in {
        "test.csv": 'label,text\nbilling,"charged twice, she said"\n',
        "dev.tsv": 'a "quote never closes\tsecond cell\n',
        "a.json": '{"q": "in json", "tokens": ["one", "by", "one"]}\n{"q": "after it"}',
        "eng.testa": "EU NNP\nwins VB\n\nIt PRP\n",
        "seq.in": "plain line\n",
        "constraints-dev.txt": "not for learning\n",
        "train.tsv": "learned\n",
        "train/x.txt": "too\n",
        ".hidden": "not this\n",
    }.items():
        (tasks / name).write_text(content)
    (tasks / "test.de.gz").write_bytes(gzip.compress(b"packed line\n"))
    done = run("builtin/evaluation_texts.py", tasks, "--out", tmp_path / "out.txt")
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "out.txt").read_text().splitlines()) == {
        "label", "text", "billing", "charged twice, she said", 'a "quote never closes', "second cell", "in json", "one",
        "by", "one by one", "after it", "EU wins", "It", "plain line", "not for learning", "packed line",
    }  # fmt: skip


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        done = run("builtin/evaluation_texts.py", folder, "--out", tmp_path / "out.txt")
        assert (done.returncode, "no text found there" in done.stderr) == (2, True)
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    assert "unpack it" in run("builtin/evaluation_texts.py", tmp_path, "--out", tmp_path / "out.txt").stderr
