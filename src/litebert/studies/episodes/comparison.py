"""`litebert evaluate --episodes`: ways to learn from a few examples, on the same small tasks, in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from litebert.commands.evaluate import Config, Method
from litebert.console import make_console, progress_bar
from litebert.data.episodes import (
    Episode,
    EpisodeFile,
    EpisodeShape,
    check_disjoint_classes,
    classes_with_enough_rows,
    draw_episode,
)
from litebert.data.tables import TableOptions
from litebert.device import pick_device
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.files import write_json
from litebert.inference import Model
from litebert.loading import load
from litebert.measure.html_report import Report
from litebert.measure.intervals import mean_difference, mean_of, spread_of
from litebert.measure.score_plots import Score
from litebert.meta.learner import Learner
from litebert.meta.tables import Table, read_meta_settings, seen_classes
from litebert.studies.episodes.methods import FROM_VECTORS, METHODS, WITHOUT_A_MODEL, Learned

SHAPE = EpisodeShape(shot=(1, 1), queries=15, episodes=600)
"""What is drawn where nothing else is said."""
MARGINS = "Each with its margin of 95 % for other episodes of these classes."
Advance = Callable[[int], None]
Fold = tuple[Table, EpisodeFile]


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
        model.configure(config.precision)
    folds = list(_folds_of(config, next(iter(models.values()))))
    for table, stored in folds:
        if len(stored.episodes) < 2:
            raise ConfigError("1 episode says nothing about others; have more drawn, 600-episodes are usual")
        asked = {table.labels[rows[0]] for episode in stored.episodes for rows in episode.support}
        for name, model in models.items():
            known = seen_classes(model, table.kind)
            check_disjoint_classes({f"what {name} learned from": known, str(table.path): sorted(asked)})
    methods = [method for method in METHODS if method in config.methods]
    count = sum(len(stored.episodes) for _, stored in folds)
    groups: dict[EpisodeShape, list[list[Outcome]]] = {}
    with progress_bar(console, f"{count:,} episodes", count * len(models) * len(methods)) as bar:
        for table, stored in folds:
            found = compare(table, stored.episodes, models, methods, lambda count: bar.advance(bar.task_ids[0], count))
            # five examples tell more than one: what has other shots is never averaged
            groups.setdefault(EpisodeShape(stored.shape.way, stored.shape.shot), []).append(found)
    rows = [
        {"shape": shape.name, "way": shape.way, "shot": shape.shot} | row
        for shape in sorted(groups, key=lambda shape: (shape.way, shape.shot))
        for row in figures_of(groups[shape])
    ]
    data = list(dict.fromkeys(str(table.path) for table, _ in folds))
    content = {"data": data, "episodes": count, "seed": config.seed, "rows": rows}
    if config.json:
        print(json.dumps(content, ensure_ascii=False))
    else:
        for title, some in _by_shape(content):
            _print_table(Console(), some, title)
    if config.out is not None:
        for number, (_, stored) in enumerate(folds, start=1):
            stored.write(config.out / (f"episodes-{number}.jsonl" if len(folds) > 1 else "episodes.jsonl"))
        console.print(_write_page(config.out, content), highlight=False, markup=False)


def _folds_of(config: Config, model: Model) -> Iterator[Fold]:
    """From files of episodes, or drawn from every table with every number of shots."""
    mask = model.tokenizer.specials["mask"]
    if not EpisodeShape.matches(config.episodes):
        if len(config.data) > 1:
            raise ConfigError(f"{len(config.data)} --data files: files of episodes know theirs; give one, or none")
        for name in config.episodes:
            stored = EpisodeFile.read(Path(name), *config.data)
            table = Table.read(stored.data, TableOptions.parse(config.columns or stored.columns, config.skip_bad), mask)
            stored.check(table.labels)
            yield table, stored
        return
    if not config.data:
        raise ConfigError(f"episodes={' '.join(config.episodes)} are drawn from labelled texts; give --data too")
    shots = [[word] for word in config.episodes if word.endswith("-shot")]
    others = [word for word in config.episodes if [word] not in shots]
    for data in config.data:
        table = Table.read(data, TableOptions.parse(config.columns, config.skip_bad), mask)
        for shape in (EpisodeShape.parse(others + shot, SHAPE) for shot in shots or [[]]):
            pool = classes_with_enough_rows(table.pool, shape, str(data))
            drawn = [draw_episode(pool, shape, config.seed, number) for number in range(shape.episodes)]
            yield table, EpisodeFile(data, config.columns, drawn)


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
    meta = read_meta_settings(model)
    learner = Learner.from_settings(model.encoder, meta, model.sentence_map) if meta else None
    if learner is not None:
        learner.bf16 = model.bf16
    return Learned(table.texts, table.labels, model, ids, found, learner), pace


def figures_of(folds: Sequence[Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Means with margins, and how much better each is than the first model's prototypes, or than the first of all.

    For every fold the same ways to learn, in the same order.
    """
    if not folds[0]:
        raise ConfigError("no method is left to compare: meta is for what litebert meta-train made; name others")
    place = next((place for place, one in enumerate(folds[0]) if one.method == "prototypes"), 0)
    frozen = [fold[place].accuracy for fold in folds]
    rows = []
    for number, same in enumerate(zip(*folds, strict=True)):
        ours = [one.accuracy for one in same]
        together: list[float] = np.concatenate(ours).tolist()
        mean, gap = mean_of(together), mean_difference(together, np.concatenate(frozen).tolist())
        means = [mean_of(fold).value for fold in ours]
        gaps = [mean_difference(*two).value for two in zip(ours, frozen, strict=True)]
        rows.append({
            "model": same[0].model, "method": same[0].method, "accuracy": mean.value, "margin": mean.margin,
            "folds": means, "spread": spread_of(means), "better": gap.value, "better_margin": gap.margin,
            "better_folds": gaps, "better_spread": spread_of(gaps), "reference": number == place,
            "seconds": float(np.mean([one.seconds for one in same])), "by_episode": together,
        })  # fmt: skip
    return rows


def _by_shape(content: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The rows of a shape, and what to call them."""
    for shape, some in groupby(content["rows"], key=lambda row: row["shape"]):
        rows = list(some)
        episodes, folds = len(rows[0]["by_episode"]), len(rows[0]["folds"])
        where = f"{folds} folds" if folds > 1 else " and ".join(content["data"])
        yield f"{shape}, {episodes:,} episodes from {where}", rows


def _cells(row: Mapping[str, Any]) -> list[str]:
    right = _mean(row["accuracy"], row["margin"], row["spread"])
    better = "" if row["reference"] else _mean(row["better"], row["better_margin"], row["better_spread"], "+")
    folds = [" ".join(f"{100 * mean:.1f}" for mean in row["folds"])] if len(row["folds"]) > 1 else []
    return [row["model"], row["method"], right, better, *folds, f"{row['seconds']:.3f}"]


def _mean(value: float, margin: float, spread: float | None, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} ± {100 * margin:.1f}" + (
        "" if spread is None else f", sd\N{NO-BREAK SPACE}{100 * spread:.1f}"
    )


def _titles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    reference = next(row for row in rows if row["reference"])
    folds = ["each fold, %"] if len(reference["folds"]) > 1 else []
    return ["model", "method", "right, %", f"better than {reference['method']} by", *folds, "seconds"]


def _caption(rows: Sequence[Mapping[str, Any]]) -> str:
    known = "±: for other episodes of these classes, 19 times out of 20; "
    if len(rows[0]["folds"]) == 1:
        return known + "other classes differ more"
    return known + "sd: the standard deviation of the folds' means, chance of the episodes included"


def _print_table(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    grid = Grid(title=title, caption=_caption(rows))
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
    where = ", ".join(content["data"])
    report = Report("Learning from a few examples", f"{content['episodes']:,} episodes from {where}")
    for way, some in groupby(content["rows"], key=lambda row: row["way"]):
        _draw_shots(
            report, EpisodeShape(way).name.split()[0], [row for row in some if row["shot"][0] == row["shot"][1]]
        )
    for title, rows in _by_shape(content):
        report.heading(title)
        report.table(_titles(rows), [_cells(row) for row in rows])
        report.text(_caption(rows))
        names = list(dict.fromkeys(row["model"] for row in rows))
        report.legend([name or "without a model" for name in names])
        report.scores(
            [
                Score(row["method"], names.index(row["model"]), row["seconds"], row["accuracy"], row["margin"])
                for row in rows
            ],
            MARGINS, "time for an episode", "questions told right",
        )  # fmt: skip
    report.write(out / "report.html")
    return f"look at {out / 'report.html'}"


def _draw_shots(report: Report, way: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """How much more examples help, where there is more than one number of them."""
    if len({row["shape"] for row in rows}) < 2:
        return
    models = {row["model"] for row in rows if row["model"]}
    names = [", ".join(filter(None, (row["method"], row["model"] if len(models) > 1 else ""))) for row in rows]
    order = list(dict.fromkeys(names))
    report.heading(f"{way} with more examples")
    report.growth(
        [
            Score(name, order.index(name), row["shot"][0], row["accuracy"], row["margin"])
            for name, row in zip(names, rows, strict=True)
        ],
        MARGINS, "examples of each class", "questions told right",
    )  # fmt: skip
