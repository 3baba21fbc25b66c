"""FewRel's files: how two things in a sentence are related, as texts in which both are marked.

{"P177": [{"tokens": ["the", "bridge", …], "h": ["bridge", "Q1", [[1]]], "t": ["river", "Q2", [[6, 7]]]}, …], …}

The file pid2name.json beside it says what relations are called: {"P177": ["crosses", …], …}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from litebert.files import read_json

MARKS = {"h": "@", "t": "#"}
"""Around the one and the other: plain signs, which a model has read before (https://arxiv.org/abs/2102.01373)."""


def is_relations(value: Mapping[str, Any]) -> bool:
    """Is it such a file, and not a row of a table?"""
    firsts = [some[0] for some in value.values() if isinstance(some, list) and some]
    return 0 < len(firsts) == len(value) and all(
        isinstance(one, dict) and {"tokens", *MARKS} <= set(one) for one in firsts
    )


def relation_rows(value: Mapping[str, Any], path: Path) -> Iterator[dict[str, str]]:
    """Text and label of every sentence."""
    beside = path.parent / "pid2name.json"
    names = read_json(beside) if beside.is_file() else {}
    for relation, sentences in value.items():
        for sentence in sentences:
            yield {"text": marked(sentence), "label": names.get(relation, [relation])[0]}


def marked(sentence: Mapping[str, Any]) -> str:
    """`@ the bridge @ over # the river #`, wherever they are mentioned."""
    words = list(sentence["tokens"])
    for role, mark in MARKS.items():
        for places in sentence[role][2]:
            words[places[0]] = f"{mark} {words[places[0]]}"
            words[places[-1]] += f" {mark}"
    return " ".join(" ".join(words).split())
