"""What `litebert adapt` prints about its result."""

from __future__ import annotations

import math
from collections.abc import Iterator

from litebert.fewshot.support_set import LeaveOneOutReport
from litebert.fewshot.tagger import TaggerReport

MAX_MISTAKES = 3
MIN_EXAMPLES_FOR_PROJECTION = 40
MAX_PROJECTED_ACCURACY = 0.95
"""No more than that is projected."""
BUDGET_MARGIN = 1.2
"""The suggested budget, in multiples of the estimated seconds."""


def summarize(report: LeaveOneOutReport) -> Iterator[str]:
    """The lines about a classifier."""
    yield f"{report.examples:,} examples of {report.classes:,} classes, {report.seconds:.1f} s"
    yield from report.remarks
    if report.accuracy is None:
        yield "no class has two examples: nothing can be left out to see how well this works"
    else:
        protocol = "leave-one-out" if report.tier == "instant" else "held-out (half of the examples each)"
        yield (
            f"{protocol} accuracy {report.accuracy:.0%} (± {report.margin or 0:.0%}); "
            f"majority baseline {report.majority_share:.0%}"
        )
        if report.accuracy <= report.majority_share:
            yield (
                "that does not beat the majority baseline: give more examples, above all of rare classes (classes are "
                "balanced here, however many examples they have), or check the labels"
            )
        for text, label, prediction in report.mistakes[:MAX_MISTAKES]:
            yield f"  {label}, taken for {prediction}: {text[:80]}"
    if (
        report.examples >= MIN_EXAMPLES_FOR_PROJECTION
        and report.accuracy_with_half is not None
        and (projected := report.projected_accuracy) is not None
    ):
        text = f"about {projected:.0%}"
        if projected > MAX_PROJECTED_ACCURACY:
            text = f"{MAX_PROJECTED_ACCURACY:.0%} or more"
        yield f"accuracy with half of the examples {report.accuracy_with_half:.0%}; twice as many may give {text}"
    yield from _tier_lines(report)
    yield f"features: {', '.join(_feature_names(report))}"


def _feature_names(report: LeaveOneOutReport) -> Iterator[str]:
    passes = " and ".join(map(str, dict.fromkeys(report.depths)))
    views = {"whole": f"hidden states after {passes} passes", "apart": f"their difference after {passes} passes"}
    if passes:
        yield from (views[view] for view in report.views)
    if report.tokens:
        yield "tokens"
    if report.characters:
        yield "character n-grams"
    if report.label_names:
        yield "names of the classes"
    if report.exponential:
        yield "exponential kernel"


def summarize_tagger(report: TaggerReport) -> Iterator[str]:
    """The lines about a tagger."""
    yield (
        f"{report.sentences:,} sentences with {report.spans:,} spans of {report.kinds:,} labels, {report.seconds:.1f} s"
    )
    if report.f1 is None:
        yield "one sentence only: nothing can be left out to see how well this works"
    else:
        yield f"leave-one-out F1 of the spans {report.f1:.2f}"
    yield f"features: hidden states after {report.depth} passes"


def _tier_lines(report: LeaveOneOutReport) -> Iterator[str]:
    """The tiers that were compared, and the first for which there was no time."""
    compared = [f"{tier} {accuracy:.0%}" for tier, accuracy, _ in report.tier_results if accuracy is not None]
    if compared:
        yield f"held-out accuracy of the tiers: {', '.join(compared)}; by the held-out loss, tier {report.tier} is used"
    late = next(((tier, seconds) for tier, accuracy, seconds in report.tier_results if accuracy is None), None)
    if late is not None:
        yield f"tier {late[0]} would take about {late[1]:.0f} s: --budget {math.ceil(late[1] * BUDGET_MARGIN)}"
