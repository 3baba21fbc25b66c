"""`litebert evaluate --episodes`: ways to learn from a few examples, on the same small tasks, in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from litebert.data.episodes import Episode, Shape, Stored, check_disjoint, draw, usable
from litebert.data.labelled import Source
from litebert.errors import ConfigError
from litebert.files import write_json
from litebert.measure.curves import Score
from litebert.measure.paired import mean_difference, mean_of
from litebert.measure.report import Report
from litebert.meta.learner import Learner
from litebert.predict import Adapted, Model, load
from litebert.recipes._episode_methods import FROM_VECTORS, METHODS, WITHOUT_A_MODEL, Learned
from litebert.recipes._shared import make_console, set_precision
from litebert.recipes._tables import Table, meta_of, practised_on
from litebert.recipes.evaluate import Config, Method
from litebert.train.log import counting
from litebert.train.runtime import pick_device

SHAPE = Shape(shot=(1, 1), queries=15, episodes=600)
"""What is drawn where nothing else is said."""
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Outcome:
    """What one way of learning reached."""

    model: str
    """Empty where none is needed."""
    method: Method
    accuracy: list[float]
    """Of each episode."""
    seconds: float
    """For an episode, the reading of its texts included."""


def run_episodes(config: Config) -> None:
    console = make_console()
    models = {name: load(name).to(pick_device(config.device)) for name in config.model}
    for name, model in models.items():
        if isinstance(model, Adapted):
            raise ConfigError(f"{name} has its classes already; give the model that it was adapted from")
        set_precision(model, config.precision)
    table, stored = _episodes_of(config, next(iter(models.values())))
    if len(stored.episodes) < 2:
        raise ConfigError("1 episode says nothing about others; have more drawn, 600-episodes are usual")
    for name, model in models.items():
        asked = {table.labels[rows[0]] for episode in stored.episodes for rows in episode.support}
        check_disjoint({f"what {name} learned from": practised_on(model, table.kind), str(table.path): sorted(asked)})
    methods = [method for method in METHODS if method in config.methods]
    total = len(stored.episodes) * (len(models) * len(methods))
    with counting(console, f"{len(stored.episodes):,} episodes", total) as bar:
        found = compare(table, stored.episodes, models, methods, lambda count: bar.advance(bar.task_ids[0], count))
    rows = figures_of(found)
    content = {"data": str(table.path), "episodes": len(stored.episodes), "seed": config.seed, "rows": rows}
    if config.json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        _print_table(Console(), rows, f"{len(stored.episodes):,} episodes from {table.path}")
    if config.out is not None:
        stored.write(config.out / "episodes.jsonl")
        console.print(_write_page(config.out, content), highlight=False, markup=False)


def _episodes_of(config: Config, model: Model) -> tuple[Table, Stored]:
    """From a file of them, or drawn."""
    mask, data = model.tokenizer.specials["mask"], config.data[0] if config.data else None
    if not Shape.is_meant(config.episodes):
        if len(config.episodes) > 1:
            raise ConfigError(f"episodes={' '.join(config.episodes)} must be one file, or words such as 5-way 1-shot")
        stored = Stored.read(Path(config.episodes[0]), data)
        table = Table.read(stored.data, Source.of(config.columns or stored.columns, config.skip_bad), mask)
        stored.check(table.labels)
        return table, stored
    shape = Shape.parse(config.episodes, SHAPE)
    if data is None:
        raise ConfigError(f"episodes={' '.join(config.episodes)} are drawn from labelled texts; give --data too")
    table = Table.read(data, Source.of(config.columns, config.skip_bad), mask)
    pool = usable(table.pool, shape, str(data))
    drawn = [draw(pool, shape, config.seed, number) for number in range(shape.episodes)]
    return table, Stored(data, config.columns, drawn)


def compare(
    table: Table,
    episodes: Sequence[Episode],
    models: Mapping[str, Model],
    methods: Sequence[Method],
    advance: Advance = lambda count: None,
) -> list[Outcome]:
    """Every method with every model on every episode. Of methods that only need vectors, all texts are read once."""
    found = []
    for number, (name, model) in enumerate(models.items()):
        learned, pace = _read(table, episodes, model, any(method in FROM_VECTORS for method in methods))
        for method in methods:
            alone = method in WITHOUT_A_MODEL
            if (alone and number) or (method == "meta" and learned.learner is None):
                advance(len(episodes))
                continue
            accuracy, began = [], time.perf_counter()
            for episode in episodes:
                accuracy.append(METHODS[method](learned, episode))
                advance(1)
            seconds = (time.perf_counter() - began) / len(episodes)
            if method in FROM_VECTORS:
                seconds += pace * float(np.mean([sum(map(len, episode.rows())) for episode in episodes]))
            found.append(Outcome("" if alone else name, method, accuracy, seconds))
    return found


def _read(table: Table, episodes: Sequence[Episode], model: Model, vectors: bool) -> tuple[Learned, float]:
    """What a model reads before the first episode, and the seconds for a text."""
    rows = sorted({row for episode in episodes for kind in episode.rows() for row in kind})
    texts = [table.texts[row] for row in rows]
    encodings = model.tokenizer.encode(texts, max_length=model.max_length)
    ids: list[list[int]] = [[]] * len(table.texts)
    for row, encoding in zip(rows, encodings, strict=True):
        ids[row] = encoding.ids
    found, began = np.zeros((len(table.texts), 0), dtype=np.float32), time.perf_counter()
    if vectors:
        some = model.embed(texts)
        found = np.zeros((len(table.texts), some.shape[1]), dtype=np.float32)
        found[rows] = some / np.linalg.norm(some, axis=1, keepdims=True)
    pace = (time.perf_counter() - began) / len(rows)
    meta = meta_of(model)
    learner = Learner.of_settings(model.encoder, meta, model.after) if meta else None
    if learner is not None:
        learner.bf16 = model.bf16
    return Learned(table.texts, table.labels, model, ids, found, learner), pace


def figures_of(found: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Means with margins, and how much better each is than the first model's prototypes, or than the first of all."""
    if not found:
        raise ConfigError("no method is left to compare: meta is for what litebert meta-train made; name others")
    frozen = next((one for one in found if one.method == "prototypes"), found[0])
    rows = []
    for one in found:
        mean, gap = mean_of(one.accuracy), mean_difference(one.accuracy, frozen.accuracy)
        rows.append({
            "model": one.model, "method": one.method, "accuracy": mean.value, "margin": mean.margin,
            "better": gap.value, "better_margin": gap.margin, "reference": one is frozen, "seconds": one.seconds,
            "by_episode": one.accuracy,
        })  # fmt: skip
    return rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    better = "" if row["reference"] else f"{100 * row['better']:+.1f} ± {100 * row['better_margin']:.1f}"
    accuracy = f"{100 * row['accuracy']:.1f} ± {100 * row['margin']:.1f}"
    return [row["model"], row["method"], accuracy, better, f"{row['seconds']:.3f}"]


def _titles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    reference = next(row for row in rows if row["reference"])
    return ["model", "method", "right, %", f"better than {reference['method']} by", "seconds"]


def _print_table(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    grid = Grid(
        title=title, caption="± for other episodes of these classes, 19 times out of 20; other classes differ more"
    )
    for number, name in enumerate(_titles(rows)):
        grid.add_column(name, justify="right" if number > 1 else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(escape, _cells(row)))
    console.print(grid)


def _write_page(out: Path, content: Mapping[str, Any]) -> str:
    """evaluation.json and, where they can be drawn, report.html; what to tell about them."""
    write_json(out / "evaluation.json", content)
    if find_spec("matplotlib") is None:
        return f"figures in {out / 'evaluation.json'}; to have them drawn: pip install 'litebert[train]'"
    rows = content["rows"]
    report = Report("Learning from a few examples", f"{content['episodes']:,} episodes from {content['data']}")
    report.table(_titles(rows), [_cells(row) for row in rows])
    names = list(dict.fromkeys(row["model"] for row in rows))
    scores = [
        Score(row["method"], names.index(row["model"]), row["seconds"], row["accuracy"], row["margin"]) for row in rows
    ]
    report.heading("What it takes, and what it brings")
    report.legend([name or "without a model" for name in names])
    report.scores(
        scores,
        "Each with its margin of 95 % for other episodes of these classes.",
        "time for an episode",
        "questions told right",
    )
    report.write(out / "report.html")
    return f"look at {out / 'report.html'}"
