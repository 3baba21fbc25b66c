"""One SQuAD file of several, and of others only the questions that have an answer.

python examples/builtin/squad.py tasks/qa/squadshifts/*.json --out tasks/qa/squad/train.json
python examples/builtin/squad.py tasks/qa/squad2_dev_half/*.json --out tasks/qa/squad/dev.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    articles: list[dict[str, Any]] = []
    for file in options.files:
        articles += json.loads(file.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for paragraph in paragraphs:
        paragraph["qas"] = [question for question in paragraph["qas"] if question["answers"]]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    print(f"{options.out}: {sum(len(paragraph['qas']) for paragraph in paragraphs):,} questions with an answer")


if __name__ == "__main__":
    main()
