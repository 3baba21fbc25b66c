"""FewRel's files: relations between two entities of a sentence, as texts with both entities marked.

{"P177": [{"tokens": ["the", "bridge", …], "h": ["bridge", "Q1", [[1]]], "t": ["river", "Q2", [[6, 7]]]}, …], …}

A file pid2name.json beside it holds the names of relations: {"P177": ["crosses", …], …}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from litebert.files import read_json

ENTITY_MARKERS = {"h": "@", "t": "#"}
"""Around the head and the tail entity: punctuation known from pre-training (https://arxiv.org/abs/2102.01373)."""


def is_fewrel(value: Mapping[str, Any]) -> bool:
    """Is it a FewRel file rather than a row of a table?"""
    first_sentences = [sentences[0] for sentences in value.values() if isinstance(sentences, list) and sentences]
    return 0 < len(first_sentences) == len(value) and all(
        isinstance(sentence, dict) and {"tokens", *ENTITY_MARKERS} <= set(sentence) for sentence in first_sentences
    )


def labelled_sentences(value: Mapping[str, Any], path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every sentence with the name of its relation."""
    names = relation_names(value, path.parent / "pid2name.json")
    for relation, sentences in value.items():
        for sentence in sentences:
            yield sentence, names[relation]


def relation_names(relations: Iterable[str], names_file: Path) -> dict[str, str]:
    """Names of relations by id; the id itself where there is no name or it is not unique."""
    known = read_json(names_file) if names_file.is_file() else {}
    names = {key: known[key][0] if isinstance(known.get(key), list) and known[key] else key for key in relations}
    counts = Counter(map(str, names.values()))
    return {key: name if isinstance(name, str) and counts[name] == 1 else key for key, name in names.items()}


def mark_entities(sentence: Mapping[str, Any]) -> str:
    """`@ the bridge @ over # the river #`, for every mention."""
    words = list(sentence["tokens"])
    for role, mark in ENTITY_MARKERS.items():
        for span in sentence[role][2]:
            words[span[0]] = f"{mark} {words[span[0]]}"
            words[span[-1]] += f" {mark}"
    return " ".join(" ".join(words).split())
