"""A validation split of labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litebert.errors import DataError
from litebert.tasks import TrainableTask

MIN_RECORDS = 3


def split(records: Sequence[Any], task: TrainableTask[Any, Any], seed: int, path: Path) -> tuple[list[Any], list[Any]]:
    """Training and validation records: a tenth is held out, stratified by class, and never a whole class.

    Records of one group, such as the questions about one passage, stay together.
    """
    if len(records) < MIN_RECORDS:
        raise DataError(f"{path}: {len(records)} examples are too few to split; give more, or a --valid file")
    members: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        group = task.group(record)
        members.setdefault(str(number) if group is None else f"group {group}", []).append(number)
    groups = list(members.values())
    if len(groups) < MIN_RECORDS:
        groups = [[number] for number in range(len(records))]
    random = np.random.default_rng(seed)
    strata: dict[str, list[list[int]]] = {}
    for place in random.permutation(len(groups)).tolist():
        strata.setdefault(task.stratum(records[groups[place][0]]), []).append(groups[place])
    held_out: set[int] = set()
    # every tenth of the strata in a row: the small ones get their share too
    place = int(random.integers(10)) if len(groups) >= 10 else len(groups) - 1
    for stratum in sorted(strata.values(), key=len, reverse=True):
        chosen = stratum[place::10][: max(0, len(stratum) - 1)]
        held_out.update(number for group in chosen for number in group)
        place = (place - len(stratum)) % 10
    if not held_out:  # every class has a single record: one of them can be spared
        held_out.update(max(strata.values(), key=len)[0])
    order = random.permutation(len(records)).tolist()
    return [records[i] for i in order if i not in held_out], [records[i] for i in order if i in held_out]
