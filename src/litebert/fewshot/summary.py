"""What `adapt` says of what it has found."""

from __future__ import annotations

import math
from collections.abc import Iterator

from litebert.fewshot.support_set import Evidence
from litebert.fewshot.tagger import TagEvidence

MISTAKES = 3
"""Shown of those that are worst."""
HINT = 40
"""Examples from which on it can be guessed what others would bring."""
MOST = 0.95
"""Of the answers right: more than that is not foretold."""
SPARE = 1.2
"""Times what something is thought to take are enough for it."""


def lines_of(evidence: Evidence) -> Iterator[str]:
    """What somebody wants to know of it."""
    yield f"{evidence.examples:,} examples of {evidence.classes:,} classes, {evidence.seconds:.1f} s"
    yield from evidence.remarks
    if evidence.accuracy is None:
        yield "no class has two examples: nothing can be left out to see how well this works"
    else:
        of_what = "examples left out" if evidence.tier == "instant" else "each half, by what the other half taught,"
        yield (
            f"of {of_what} {evidence.accuracy:.0%} (± {evidence.margin or 0:.0%}) are told right; the largest class "
            f"alone would get {evidence.chance:.0%}"
        )
        if evidence.accuracy <= evidence.chance:
            yield (
                "that is no better than guessing: give more examples, above all of rare classes (all classes count "
                "alike here, however many examples they have), or check the labels"
            )
        for text, label, taken in evidence.mistakes[:MISTAKES]:
            yield f"  {label}, taken for {taken}: {text[:80]}"
    if evidence.examples >= HINT and evidence.with_half is not None and evidence.with_twice is not None:
        twice = f"{MOST:.0%} or more" if evidence.with_twice > MOST else f"about {evidence.with_twice:.0%}"
        yield f"with half of the examples it would be {evidence.with_half:.0%}; twice as many may give {twice}"
    yield from _tiers(evidence)
    passes = " and ".join(map(str, dict.fromkeys(evidence.depths)))
    views = {"whole": f"hidden states after {passes} passes", "apart": f"how far two lie apart after {passes} passes"}
    looked = [views[view] for view in evidence.views if passes] + ["their tokens"] * evidence.tokens
    looked += ["their characters"] * evidence.characters
    looked += ["the names of the classes"] * evidence.label_names + ["near examples above all"] * evidence.bent
    yield f"what tells them apart best: {', '.join(looked)}"


def lines_of_tags(evidence: TagEvidence) -> Iterator[str]:
    """The same of a tagger."""
    yield (
        f"{evidence.sentences:,} sentences with {evidence.spans:,} spans of {evidence.kinds:,} kinds, "
        f"{evidence.seconds:.1f} s"
    )
    if evidence.f1 is None:
        yield "one sentence only: nothing can be left out to see how well this works"
    else:
        yield f"in sentences left out spans are found with an F1 of {evidence.f1:.2f}"
    yield f"what tells words best: hidden states after {evidence.depth} passes"


def _tiers(evidence: Evidence) -> Iterator[str]:
    """What was tried, and the first thing that there was no time for."""
    told = [f"{tier} {share:.0%}" for tier, share, _ in evidence.tried if share is not None]
    if told:
        yield (
            f"of each half of the examples, by what the other half taught: {', '.join(told)} are told right; by "
            f"the probabilities of what is right, tier {evidence.tier} is used"
        )
    late = next(((tier, seconds) for tier, share, seconds in evidence.tried if share is None), None)
    if late is not None:
        yield f"tier {late[0]} would take about {late[1]:.0f} s: --budget {math.ceil(late[1] * SPARE)}"
