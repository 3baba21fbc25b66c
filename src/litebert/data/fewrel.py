"""FewRel's files: how two things in a sentence are related, as texts in which both are marked.

{"P177": [{"tokens": ["the", "bridge", …], "h": ["bridge", "Q1", [[1]]], "t": ["river", "Q2", [[6, 7]]]}, …], …}

The file pid2name.json beside it says what relations are called: {"P177": ["crosses", …], …}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from litebert.files import read_json

ENTITY_MARKERS = {"h": "@", "t": "#"}
"""Around the one and the other: plain signs, which a model has read before (https://arxiv.org/abs/2102.01373)."""


def is_fewrel(value: Mapping[str, Any]) -> bool:
    """Is it such a file, and not a row of a table?"""
    firsts = [some[0] for some in value.values() if isinstance(some, list) and some]
    return 0 < len(firsts) == len(value) and all(
        isinstance(one, dict) and {"tokens", *ENTITY_MARKERS} <= set(one) for one in firsts
    )


def labelled_sentences(value: Mapping[str, Any], path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every sentence, and what its relation is called."""
    names = relation_names(value, path.parent / "pid2name.json")
    for relation, sentences in value.items():
        for sentence in sentences:
            yield sentence, names[relation]


def relation_names(relations: Iterable[str], beside: Path) -> dict[str, str]:
    """What relations are called; where nothing is said, or two would be called the same, by their ids."""
    said = read_json(beside) if beside.is_file() else {}
    names = {one: said[one][0] if isinstance(said.get(one), list) and said[one] else one for one in relations}
    often = Counter(map(str, names.values()))
    return {one: name if isinstance(name, str) and often[name] == 1 else one for one, name in names.items()}


def mark_entities(sentence: Mapping[str, Any]) -> str:
    """`@ the bridge @ over # the river #`, wherever they are mentioned."""
    words = list(sentence["tokens"])
    for role, mark in ENTITY_MARKERS.items():
        for places in sentence[role][2]:
            words[places[0]] = f"{mark} {words[places[0]]}"
            words[places[-1]] += f" {mark}"
    return " ".join(" ".join(words).split())
