"""Draws the figures of docs/ideas and prints the numbers that they show.

    python docs/figures.py                   # all of them: some minutes of one thread
    python docs/figures.py sharing lamb      # these
    python docs/figures.py depth --out runs  # elsewhere

`figure_data.py` and `figure_trainings.py` compute them. Labels are few and English; the Chinese pages explain them in
their captions.
"""

from __future__ import annotations

import argparse
import io
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from figure_data import (
    built_in,
    class_accuracy,
    explained_variance,
    few_shot_scores,
    is_correct,
    mask_texts,
    mlm_accuracy,
    order_probabilities,
    parameter_count,
    rotations,
    run_lengths,
)
from figure_parts import (
    DASHED,
    INK,
    PAPER,
    QUIET,
    RUNS,
    as_card,
    band,
    curve,
    legend,
    panels,
    percent,
    questions,
    sentence,
    titled,
)
from figure_trainings import TinyTraining, elastic_scores
from matplotlib import rc_context

from litebert.data.masking import Masking, MaskUnit
from litebert.inference.early_exit import measured_exits
from litebert.train.options import OptimizerName

EXAMPLE = "The old cartographer from Antananarivo sold us three maps of the harbour in June."
EXAMPLE_SEED = 36  # with which each way hides something that can be seen
Drawn = tuple[Any, list[str]]
"""A figure, and its numbers as lines of text."""


def factorised_embedding() -> Drawn:
    """Parameters by embedding size, and the variance explained by the directions of the built-in word vectors."""
    figure, (left, right) = panels(2.9, 1, 1)
    sizes = [32, 64, 128, 256, 512, 768]
    counts = [parameter_count("word_embeddings", "project", embedding_size=size) / 1e6 for size in sizes]
    whole = 30_000 * 768 / 1e6  # BERT's table, which needs no map behind it
    curve(left, sizes, counts, 0, "V × E + E × H")
    left.axhline(whole, color=RUNS[1], linewidth=1.4, linestyle=DASHED, label="V × H, as in BERT")
    words = {"textcoords": "offset points", "fontsize": 8.5, "color": RUNS[0], "va": "top"}
    left.annotate(f"E = 128: {counts[2]:.1f} M", (128, counts[2]), (10, 0), **words)
    left.set(ylim=(0, 27), xticks=[64, 128, 256, 512, 768])
    titled(left, "cost", "embedding size E", "parameters, millions")
    legend(left, loc="lower right")
    held, mixed = explained_variance()
    for number, (share, name) in enumerate(((held, "built-in model"), (mixed, "columns shuffled"))):
        right.plot(range(1, 129), share, color=RUNS[number], linewidth=1.8, label=name)
    right.set(ylim=(0, 1.02), xlim=(0, 129), xticks=[1, 32, 64, 96, 128])
    percent(right.yaxis)
    titled(right, "use", "principal directions kept", "explained variance")
    legend(right, loc="lower right")
    lines = [f"E = {size}: {count:.2f} M" for size, count in zip(sizes, counts, strict=True)]
    lines.append(f"V × H: {whole:.2f} M")
    for name, shares in (("built-in", held), ("shuffled", mixed)):
        need = [next(k for k, share in enumerate(shares, 1) if share >= wanted) for wanted in (0.5, 0.9, 0.99)]
        some = [f"{shares[k - 1]:.3f}" for k in (1, 32, 64, 96)]
        lines.append(f"{name}: 1, 32, 64, 96 directions hold {', '.join(some)}; 50, 90, 99 % need {need}")
    return figure, lines


def sharing() -> Drawn:
    """Parameters by kind of sharing, and by how much each pass of the built-in model rotates the state of a token."""
    figure, (left, right) = panels(2.9, 1, 1)
    ways = {"all": "all", "ffn": "feed-forward", "attention": "attention", "none": "nothing"}
    counts = [parameter_count(sharing=way) / 1e6 for way in ways]
    left.barh(range(4), counts, color=RUNS[0], height=0.6)
    for y, count in enumerate(counts):
        left.text(count + 1.5, y, f"{count:.1f} M", va="center", fontsize=8.5, color=INK)
    left.set_yticks(range(4), list(ways.values()))
    left.set(xlim=(0, 108), ylim=(3.6, -0.6))
    left.grid(visible=False)
    titled(left, "what is shared", "parameters of the base encoder, millions")
    angles, moves = rotations(24)
    curve(right, range(1, 25), angles, 0)
    right.axvline(12.5, color=QUIET, linewidth=0.9, linestyle=DASHED)
    right.text(13.2, max(angles), "beyond the\ntraining depth", fontsize=8, color=QUIET, va="top")
    right.set(ylim=(0, max(angles) * 1.05), xlim=(0, 25), xticks=[1, 3, 6, 9, 12, 15, 18, 21, 24])
    titled(right, "does it converge?", "pass", "rotation of a token's state, degrees")
    lines = [f"shared {name}: {count:.1f} M" for name, count in zip(ways.values(), counts, strict=True)]
    some = (1, 2, 3, 6, 9, 10, 11, 12, 13, 18, 24)
    return figure, lines + [f"pass {n}: {angles[n - 1]:.1f} degrees, {moves[n - 1]:.2f} of its length" for n in some]


def sentence_order() -> Drawn:
    """NSP and SOP as diagrams, and the SOP predictions of the built-in model for docs/passages.txt."""
    figure, (left, right) = panels(3.0, 1, 1.15)
    questions(left)
    said = order_probabilities([12])[0]  # (passages, cuts, 2)
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, said.shape)
    dots = {"alpha": 0.45, "markersize": 4.5, "markeredgewidth": 0}
    for kind, colour in ((0, RUNS[2]), (1, RUNS[1])):
        right.plot(said[..., kind].ravel(), kind + jitter[..., kind].ravel(), "o", color=colour, **dots)
    right.axvline(0.5, color=QUIET, linewidth=0.9, linestyle=DASHED)
    right.set_yticks([0, 1], ["A B", "B A"])
    right.set(xlim=(-0.03, 1.03), ylim=(1.5, -0.5))
    right.grid(visible=False)
    percent(right.xaxis)
    titled(right, "SOP head of the built-in model", "probability of 'in order'")
    correct, sure = is_correct(said), np.maximum(said, 1 - said) > 0.9
    of_passage = correct.mean((1, 2))
    return figure, [
        f"{correct.size} pairs, accuracy {correct.mean():.3f}, "
        f"standard error over {len(of_passage)} passages {of_passage.std(ddof=1) / math.sqrt(len(of_passage)):.3f}",
        f"in order {correct[..., 0].mean():.3f}, swapped {correct[..., 1].mean():.3f}",
        f"cut after sentence 2 and 4: {correct.mean((0, 2)).round(3).tolist()}",
        f"confidence above 0.9 for {sure.mean():.3f} of them, accuracy there {correct[sure].mean():.3f}",
    ]


def ngram_masking() -> Drawn:
    """A sentence masked in three ways, lengths of masked runs, and MLM accuracy."""
    kinds: tuple[MaskUnit, ...] = ("token", "word", "ngram")
    figure, (top, left, right) = panels(3.9, 1.15, 1, above=1.2)
    for row, kind in enumerate(kinds):
        batch, hidden, _ = mask_texts([EXAMPLE], kind, EXAMPLE_SEED, 0.3)
        tokens = [built_in().tokenizer.token(int(number)) for number in batch.input_ids[0, 1:-1]]
        sentence(top, row, kind, tokens, hidden[0, 1:-1])
    wanted = Masking("ngram").length_probabilities
    runs = {rate: run_lengths("ngram", rate, 40) for rate in (0.02, 0.15)}
    shares = {rate: [counts[n] / counts.total() for n in (1, 2, 3)] + [sum(counts[n] for n in counts if n > 3) /
              counts.total()] for rate, counts in runs.items()}  # fmt: skip
    for place, (name, values) in enumerate(
        {"p(n) ∝ 1/n": [*wanted, 0], "2 % masked": shares[0.02], "15 % masked": shares[0.15]}.items()
    ):
        left.bar(np.arange(4) + 0.27 * (place - 1), values, 0.25, color=[QUIET, RUNS[2], RUNS[0]][place], label=name)
    left.set_xticks(range(4), ["1", "2", "3", "more"])
    percent(left.yaxis)
    titled(left, "masked runs", "words in a row")
    legend(left)
    found = {kind: mlm_accuracy([12], kind, 6) for kind in kinds}
    right.bar(range(3), [share[0] for share, _ in found.values()], 0.55, color=RUNS[0])
    for x, (share, _) in enumerate(found.values()):
        right.text(x, share[0] + 0.01, f"{share[0]:.1%}", ha="center", fontsize=8.5, color=INK)
    right.set_xticks(range(3), kinds)
    right.set_ylim(0, 0.75)
    percent(right.yaxis)
    titled(right, "MLM accuracy, 15 % masked")
    lines = [f"p(n): {wanted.round(3).tolist()}, mean {wanted @ np.arange(1, 4):.3f} words"]
    for rate, counts in runs.items():
        mean = sum(n * count for n, count in counts.items()) / counts.total()
        lines.append(f"{rate:.0%} masked: 1, 2, 3, more {np.round(shares[rate], 3).tolist()}, mean {mean:.3f} words, "
                     f"{counts.total()} runs")  # fmt: skip
    return figure, lines + [f"{kind}: accuracy {share[0]:.3f} of {count}" for kind, (share, count) in found.items()]


def lamb() -> Drawn:
    """Relative updates of three optimizers, and the loss by learning rate: many trainings of seconds."""
    figure, (left, right) = panels(3.1, 1, 1.2)
    names: tuple[OptimizerName, ...] = ("adamw", "lamb", "muon")
    rates, seeds, tiny = [1e-3, 3e-3, 1e-2, 3e-2, 1e-1], (0, 1, 2), TinyTraining()
    lines = []
    for number, name in enumerate(names):
        runs = [[tiny(name, rate, seed) for seed in seeds] for rate in rates]
        losses = np.array([[loss for loss, _ in row] for row in runs])
        curve(right, rates, losses.mean(1), number, ["AdamW", "LAMB", "Muon"][number])
        for seed in range(len(seeds)):
            right.plot(rates, losses[:, seed], "o", color=RUNS[number], alpha=0.35, markersize=4, markeredgewidth=0)
        best = int(np.nanargmin(losses.mean(1)))
        steps = runs[best][0][1]
        left.plot([number] * len(steps), list(steps.values()), "o", color=RUNS[number], alpha=0.6, markersize=5)
        ends = sorted(steps.items(), key=lambda pair: pair[1])
        lines += [
            f"{name}: loss by rate {dict(zip(rates, losses.mean(1).round(2).tolist(), strict=True))}",
            f"  relative updates at {rates[best]}: "
            + ", ".join(f"{part} {moved:.2f}" for part, moved in (ends[0], ends[-1])),
        ]
    left.set_yscale("log")
    left.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    left.minorticks_off()
    left.set(xlim=(-0.5, 2.5), ylim=(0.4, 10))
    left.set_xticks(range(3), ["AdamW", "LAMB", "Muon"])
    titled(left, "relative update, by matrix", "", "‖update‖ / (learning rate × ‖matrix‖)")
    right.axhline(tiny.unigram_loss, color=QUIET, linewidth=0.9, linestyle=DASHED)
    lines.append(f"word frequencies alone: {tiny.unigram_loss:.2f}")
    right.set_xscale("log")
    right.set_xticks(rates, [f"{rate:g}" for rate in rates])
    right.minorticks_off()
    titled(right, "after 150 steps", "learning rate", "held-out loss")
    legend(right)
    return figure, lines


def depth() -> Drawn:
    """Accuracy of the built-in model after each pass: MLM, SOP and few-shot classification of messages."""
    figure, (left, right) = panels(3.0, 1, 1)
    depths = [*range(1, 13), 15, 18]
    found, hidden = mlm_accuracy(depths, "token", 4)
    ordered = is_correct(order_probabilities(depths)).mean((1, 2, 3))
    told = class_accuracy(depths[:12], 8, 10)
    curve(left, depths, found, 0, "MLM")
    curve(left, depths, ordered, 1, "SOP")
    left.axvline(12.5, color=QUIET, linewidth=0.9, linestyle=DASHED)
    left.set(ylim=(0, 1), xlim=(0, 19), xticks=[1, 3, 6, 9, 12, 15, 18])
    percent(left.yaxis)
    titled(left, "pre-training objectives", "passes", "accuracy")
    legend(left)
    band(right, depths[:12], told, 2, "class of a message")
    right.axhline(1 / 6, color=QUIET, linewidth=0.9, linestyle=DASHED)
    right.set(xlim=(0, 13), ylim=(0, 0.65), xticks=[1, 3, 6, 9, 12])
    percent(right.yaxis)
    titled(right, "few-shot classification", "passes", "accuracy")
    legend(right, loc="upper left")
    return figure, [
        f"MLM ({hidden} tokens): {dict(zip(depths, found.round(3).tolist(), strict=True))}",
        f"SOP: {dict(zip(depths, ordered.round(3).tolist(), strict=True))}",
        f"classes: {dict(zip(depths, told.mean(1).round(3).tolist(), strict=False))}",
        f"  standard deviation over draws: {told.std(1, ddof=1).round(3).tolist()}",
    ]


def early_exit() -> Drawn:
    """Early exit of an elastic student: agreement and accuracy by the number of passes."""
    with tempfile.TemporaryDirectory() as folder:
        said, depths, truth = elastic_scores(Path(folder))
    figure, (left, right) = panels(3.0, 1, 1)
    exits = measured_exits(said, depths)
    fixed = (said.argmax(-1) == np.array(truth)).mean(1)
    likely = np.exp(said - said.max(-1, keepdims=True))
    sure = (likely / likely.sum(-1, keepdims=True)).max(-1)
    agree = (said.argmax(-1) == said[-1].argmax(-1)).mean(1)
    left.plot([one.passes for one in exits], [one.agreement for one in exits], color=RUNS[0], linewidth=1.8,
              label="early exit")  # fmt: skip
    left.plot(depths, agree, "D", color=RUNS[1], markersize=5, label="fixed depth")
    left.set(xlim=(depths[0] - 0.5, depths[-1] + 0.5), xticks=depths)
    percent(left.yaxis)
    titled(left, "agreement with all passes", "mean number of passes")
    legend(left, loc="lower right")
    for number, depth in enumerate(depths[:-1]):
        right.plot(np.sort(sure[number]), np.linspace(0, 1, len(truth)), color=RUNS[number + 2], linewidth=1.8,
                   label=f"after {depth} passes")  # fmt: skip
    percent(right.yaxis)
    percent(right.xaxis)
    titled(right, "confidence", "probability of the top class", "texts below")
    legend(right)
    lines = [f"accuracy after {depths}: {fixed.round(3).tolist()}, same as the last: {agree.round(3).tolist()}"]
    return figure, lines + [
        f"confidence {e.sure:.3f}: {e.passes:.2f} passes, agreement {e.agreement:.3f}" for e in exits[::4]
    ]


def few_shot() -> Drawn:
    """Accuracy on support messages by the number of examples per class."""
    figure, (axes,) = panels(3.0, 1)
    shots = [1, 2, 4, 8, 16]
    ours, bags = few_shot_scores(shots, 8, 120)
    band(axes, shots, ours, 0, "litebert adapt")
    band(axes, shots, bags, 1, "bag of words")
    axes.axhline(1 / 6, color=QUIET, linewidth=0.9, linestyle=DASHED)
    axes.set_xscale("log")
    axes.set_xticks(shots, map(str, shots))
    axes.minorticks_off()
    axes.set_ylim(0, 0.8)
    percent(axes.yaxis)
    titled(axes, "six classes, 120 test messages", "examples per class", "accuracy")
    legend(axes, loc="upper left")
    return figure, [
        f"{count} of each: adapt {ours[row].mean():.3f} ± {ours[row].std(ddof=1):.3f}, "
        f"bag {bags[row].mean():.3f} ± {bags[row].std(ddof=1):.3f}" for row, count in enumerate(shots)
    ]  # fmt: skip


FIGURES: dict[str, Callable[[], Drawn]] = {
    "factorised-embedding": factorised_embedding,
    "sharing": sharing,
    "sentence-order": sentence_order,
    "ngram-masking": ngram_masking,
    "lamb": lamb,
    "depth": depth,
    "early-exit": early_exit,
    "few-shot": few_shot,
}


def draw(name: str, out: Path) -> list[str]:
    """Write a figure and return its numbers."""
    figure, lines = FIGURES[name]()
    drawn, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": name}):  # the same drawing is the same file
        figure.savefig(drawn, format="svg", facecolor=PAPER, metadata=nothing)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.svg").write_text(as_card(drawn.getvalue()), encoding="utf-8")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="figure", help=f"of {', '.join(FIGURES)}; without any, all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images" / "ideas")
    given = parser.parse_args()
    if unknown := sorted(set(given.figures) - set(FIGURES)):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(FIGURES)}")
    for wanted in given.figures or FIGURES:
        print(f"{wanted}:", *draw(wanted, given.out), sep="\n  ", flush=True)
