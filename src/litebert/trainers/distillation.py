"""A distillation run: its parts, what the loop asks of them, and what happens after a step. `distill` has the
settings."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from litebert.builtin import folder_of
from litebert.compress.evaluation import check_test_file, encoder_latency_ms, read_examples, score_on_cpu
from litebert.compress.from_bert import albert_from_bert
from litebert.compress.students import (
    Distiller,
    TextDistiller,
    compares_texts_only,
    fold_map_into_head,
    make_student,
    mask_tokens,
    teacher_targets,
)
from litebert.compress.teachers import TransformersTeacher, load_bert_teacher, load_other_teacher
from litebert.console import make_console
from litebert.data.batches import Batch, Example, batches_by_length, collate, epoch_batches, steps_per_epoch
from litebert.device import pick_device, training_precision
from litebert.errors import ConfigError, DataError
from litebert.files import file_sha256, write_json
from litebert.inference import Model
from litebert.inference.early_exit import can_exit, measured_exits, quarters
from litebert.loading import load
from litebert.run_folder import write_run
from litebert.tasks import Similarity, TrainableTask
from litebert.tasks.answer import Answer
from litebert.tasks.tag import Tag
from litebert.train.checkpointing import Checkpoints
from litebert.train.guard import Guard
from litebert.train.log import RunLog
from litebert.train.loop import Step, train
from litebert.train.optimizers import adamw, warmup_linear
from litebert.train.save_schedule import SaveEvery
from litebert.trainers.distill_config import SPEEDS, DistillConfig
from litebert.trainers.initial_model import default_learning_rate, load_trainable

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


WEIGHT_DECAY = 0.01
HELD_OUT = 10  # every tenth
FITTED = 2048  # texts that the embeddings of what was a BERT begin with
MAPPED = 512  # texts that the map of the student's states begins with
EMBEDDING_SIZE = 128  # ALBERT's
FROM_BERT_RATE = 5  # times the usual, for weights that are far from what they should be
UNDECISIVE = {"out", "resume", "device", "save_every", "json", "test"}


@dataclass(frozen=True)
class Result:
    """What a student came to. In lists the teacher's comes first, then the student's after each of its depths."""

    passes: list[int]
    milliseconds: list[float]
    """For one text of 64 tokens, the encoder alone, on this CPU."""
    parameters: tuple[int, int]
    distance: tuple[float, float]
    """From the teacher on the texts that were held out, before the first step and after the best epoch; the mean over
    all depths."""
    epoch: int
    """The best."""
    seconds: float
    metric: str = ""
    scores: list[float] | None = None
    exits: list[tuple[float, float, float]] = field(default_factory=list)
    """Of an elastic classifier: how sure, the mean number of passes, and the share of texts that get the answer that
    all passes give, on the texts that were held out."""
    score_before: float | None = None
    """Of what was a BERT, before the first step."""
    early: list[tuple[float, float]] = field(default_factory=list)
    """Where easy texts stop early on the test, at some speeds: the mean number of passes, and the score."""


def distill(config: DistillConfig, console: Console | None = None) -> Result | None:
    """Teach and save a student; None when a stop was asked for before the end."""
    console = console or make_console()
    began = time.perf_counter()
    run = Run(config, console)
    if not run():
        return None
    seconds = time.perf_counter() - began
    teacher, student = run.teacher.to("cpu"), load(config.out)  # what people will load is what is measured
    if config.elastic and can_exit(student.task):
        task: Any = student.task
        task.exits = measured_exits(run.scores_at_depths(student.to(run.device)), run.depths)
        student.to("cpu").save(config.out)
    models = [teacher, *(student for _ in run.depths)]
    passes = [teacher.passes, *run.depths]
    metric, scores = "", []
    if config.test is not None:
        for model, count in zip(models, passes, strict=True):
            model.passes = count
            metric, found = score_on_cpu([model], config.test, config.columns)
            scores += found
    early = _early(config, student) if config.elastic else []
    weights = [[one for one in model.encoder.parameters() if one.requires_grad] for model in (teacher, student)]
    parameters = [sum(one.numel() for one in some) for some in weights]
    result = Result(
        passes, encoder_latency_ms(models, passes), (parameters[0], parameters[1]), (run.start, run.best),
        run.best_epoch, seconds, metric, scores or None, getattr(student.task, "exits", []) if config.elastic else [],
        run.score_before, early,
    )  # fmt: skip
    write_json(config.out / "finished.json", asdict(result))
    if run.best >= run.start:
        console.print(
            "the student has come no nearer to its teacher; it needs more texts, more --epochs or another "
            "--learning-rate", highlight=False, markup=False,
        )  # fmt: skip
    return result


def _early(config: DistillConfig, student: Model) -> list[tuple[float, float]]:
    """The mean number of passes on the test, and the score, where easy texts stop early at some speeds."""
    exits, found = getattr(student.task, "exits", []), []
    student.passes = student.config.num_hidden_layers
    for speed in SPEEDS if exits and config.test is not None else ():
        if exits[-1].passes <= student.passes / speed:
            assert config.test is not None
            student.set_speed(speed)
            score = score_on_cpu([student], config.test, config.columns)[1][0]
            stopped = student.stopped_after
            found.append((sum(count * many for count, many in stopped.items()) / stopped.total(), score))
    student.set_speed(1)
    return found


def teacher_of(config: DistillConfig) -> Model:
    if config.from_bert is not None:
        return load_bert_teacher(config.from_bert)
    assert config.teacher is not None
    teacher = load_other_teacher(folder_of(config.teacher)) or load_trainable(config.teacher)
    if isinstance(teacher.task, Similarity):
        teacher.task = None  # its answers are cosines of its vectors, and those are learned
    return teacher


def first_student(config: DistillConfig, teacher: Model) -> Model:
    """The student before its first step."""
    layers = teacher.config.num_hidden_layers
    if config.from_bert is not None:
        size = (
            min(EMBEDDING_SIZE, teacher.config.hidden_size) if config.embedding_size is None else config.embedding_size
        )
        windows = [
            Example([window])
            for one in read_examples(teacher, config.data, config.columns, FITTED)
            for window in one.sequences
        ]
        groups = batches_by_length([one.length for one in windows], config.batch_size)
        batches = [collate([windows[i] for i in group], teacher.tokenizer.pad_id) for group in groups]
        passes = layers if config.passes is None else config.passes
        return make_student(teacher, albert_from_bert(teacher, batches, size, passes), passes)
    if config.student is not None:
        start = load_trainable(config.student)
        return make_student(teacher, start, config.passes or start.config.num_hidden_layers)
    if isinstance(teacher, TransformersTeacher) or (teacher.config.sharing != "all" and not config.elastic):
        raise ConfigError(
            f"{config.teacher}: its passes share no layer, so it cannot run fewer of them; give a --student, or if it "
            "is a BERT make an ALBERT of it with --from-bert"
        )
    passes = config.passes or (layers if config.elastic else max(1, layers // 2))
    if not config.elastic and passes >= teacher.passes:
        raise ConfigError(f"passes={passes} must be fewer than the teacher's {teacher.passes}, or use --elastic")
    return make_student(teacher, teacher, passes)


class Run:
    """What changes while a run goes on."""

    def __init__(self, config: DistillConfig, console: Console) -> None:
        self.config, self.console = config, console
        self.device = pick_device(config.device)
        self.teacher = teacher_of(config)
        check_test_file(self.teacher, config.test, config.columns)
        torch.manual_seed(config.seed)  # for a new head
        self.student = first_student(config, self.teacher)
        passes = self.student.config.num_hidden_layers
        self.depths = quarters(passes) if config.elastic else [passes]
        self.teacher.to(self.device)
        self.student_is_another = config.student is not None or config.from_bert is not None
        whole = compares_texts_only(self.teacher, self.student)
        examples = self._examples(config.data, whole)
        if len(examples) < 2:
            raise DataError(f"{config.data}: {len(examples)} text is too few; give hundreds, or better thousands")
        if config.valid is None:
            held_out = np.random.default_rng(config.seed).permutation(len(examples))[: -(-len(examples) // HELD_OUT)]
            self.held_out = [examples[i] for i in held_out.tolist()]
            examples = [examples[i] for i in np.delete(np.arange(len(examples)), held_out).tolist()]
        else:
            self.held_out = self._examples(config.valid, whole)
        self.examples = examples
        self.lengths = np.array([one.length for one in self.examples])
        self.epoch_steps = steps_per_epoch(len(self.examples), config.batch_size)
        self.epochs = config.epochs or min(20, max(3, -(-50_000 // len(self.examples))))
        self.distiller: Distiller | TextDistiller = (
            TextDistiller(self.student, self.examples)
            if whole
            else Distiller(self.student, self.teacher, mapped=self.student_is_another)
        ).to(self.device)
        self.score_before = self._begin()
        self.bf16 = training_precision(config.precision, self.device) == "bf16"
        factor = 1 if config.from_bert is None else FROM_BERT_RATE
        rate = config.learning_rate or default_learning_rate(self.student) * factor
        self.schedule = warmup_linear(rate, self.epochs * self.epoch_steps)
        self.optimizer = adamw(self.distiller, weight_decay=WEIGHT_DECAY)
        self.stateful: dict[str, Any] = {"model": self.distiller, "optimizer": self.optimizer}
        self.guard = Guard(self.stateful, spike=math.inf)
        self.saving = SaveEvery.parse(config.save_every, self.epoch_steps)
        self.decisive = {name: str(value) for name, value in asdict(config).items() if name not in UNDECISIVE}
        names = [name for name in (config.teacher, config.from_bert, config.student) if name]
        weights = [folder_of(name) / "model.safetensors" for name in names]
        files = [config.data, *([config.valid] if config.valid else []), *(path for path in weights if path.is_file())]
        self.decisive |= {f"content of {path}": file_sha256(path) for path in files} | {"bf16": str(self.bf16)}
        self.start, self.best, self.best_epoch = math.inf, math.inf, 0
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    def _examples(self, path: Path, whole: bool) -> list[Example]:
        """What the student reads of a file; if it reads other tokens than its teacher, with what that says of each."""
        examples = read_examples(self.student, path, self.config.columns)
        if isinstance(self.student.task, Tag | Answer):  # whose windows can be learned alone
            examples = [Example([window]) for one in examples for window in one.sequences]
        if not whole:
            return examples
        said = teacher_targets(self.teacher, read_examples(self.teacher, path, self.config.columns))
        return [replace(one, target=row) for one, row in zip(examples, said, strict=True)]

    def _begin(self) -> float | None:
        """Fit what need not be learned; the score of what was a BERT, as it begins."""
        config, distiller = self.config, self.distiller
        if isinstance(distiller, Distiller):
            groups = batches_by_length([one.length for one in self.examples[:MAPPED]], config.batch_size)
            batches = [self._collated([self.examples[i] for i in group], n) for n, group in enumerate(groups)]
            distiller.fit_map(batches)
            if config.from_bert is not None and isinstance(distiller.bridge, torch.nn.Linear):
                fold_map_into_head(self.student, distiller.bridge)
        if config.test is None or config.from_bert is None:
            return None
        score = score_on_cpu([self.student], config.test, config.columns)[1][0]
        self.student.to(self.device)
        return score

    def __call__(self) -> bool:
        """True when all steps were done."""
        config = self.config
        with Checkpoints(config.out / "checkpoints", self.stateful) as self.checkpoints:
            start = self.checkpoints.load_latest(self.decisive) if config.resume else 0
            if start:
                state = self.checkpoints.state
                self.start, self.best, self.best_epoch = state["start"], state["best"], state["best_epoch"]
                self.guard.restore(state["guard"])
                self._say(f"going on from step {start:,}")
            self._introduce()
            with RunLog(config.out, self.console, "distill", start=start) as self.log:
                if not start:
                    figures = self._measure()
                    self.start = figures["loss"]
                    self.log.validation(0, figures)
                try:
                    return train(
                        self.distiller, self._loss, self._read, self.optimizer, self.schedule,
                        steps=self.epochs * self.epoch_steps, start=start, seed=config.seed, guard=self.guard,
                        hooks=[self.log, self._validate, self._save], on_trouble=self.log.say,
                    )  # fmt: skip
                except torch.OutOfMemoryError as error:
                    rows = config.batch_size
                    raise ConfigError(
                        f"out of memory with {rows} texts at once; try --batch-size {max(1, rows // 2)}, in another "
                        "--out"
                    ) from error

    def _introduce(self) -> None:
        """Say and write down what is about to happen."""
        write_run(self.config.out, "distill", self.config)
        passes = (self.teacher.config.num_hidden_layers, self.student.config.num_hidden_layers)
        self._say(
            f"from {passes[0]} passes to {passes[1]}: {len(self.examples):,} texts to learn on, {len(self.held_out):,} "
            f"to choose by; {self.epochs} times {self.epoch_steps:,} steps, on {self.device}"
        )

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def scores_at_depths(self, student: Model) -> np.ndarray:  # (depths, N, C)
        """What it says of the texts that were held out, the mean over the windows of each."""
        task, found = student.task, []
        assert task is not None
        for depth in self.depths:
            student.passes = depth
            scores = student.score_examples(task, self.held_out)
            found.append(np.stack([one["scores"].mean(0).numpy() for one in scores]))
        return np.stack(found)

    # what the loop asks for

    def _read(self, step: int) -> list[tuple[Batch, int]]:
        epoch, within = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = epoch_batches(self.lengths, self.config.batch_size, self.config.seed, epoch)
        depth = np.random.default_rng([self.config.seed, step]).choice(self.depths).item()
        return [(self._collated([self.examples[i] for i in self._batches[within]], step), depth)]

    def _collated(self, examples: list[Example], number: int) -> Batch:
        batch, tokenizer = collate(examples, self.student.tokenizer.pad_id), self.student.tokenizer
        if isinstance(self.distiller, Distiller) and self.distiller.hides:
            batch = mask_tokens(batch, tokenizer, np.random.default_rng([self.config.seed, number, 1]))
        return batch.to(self.device)

    def _loss(self, given: tuple[Batch, int]) -> dict[str, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            found: dict[str, Tensor] = self.distiller(*given)
        return found

    # what happens after a step

    def _validate(self, step: Step) -> None:
        if step.done % self.epoch_steps:
            return
        figures = self._measure()
        self.log.validation(step.done, figures)
        if figures["loss"] <= self.best:
            self.best, self.best_epoch = figures["loss"], step.done // self.epoch_steps
            if not isinstance(self.student.task, TrainableTask):
                self.student.sentence_map = self.distiller.sentence_map
            self.student.save(self.config.out)

    def _measure(self) -> dict[str, float]:
        """How far the student is from the teacher on the texts that it does not learn on, over all its depths."""
        total: dict[str, float] = defaultdict(float)
        self.distiller.eval()
        with torch.inference_mode():
            groups = batches_by_length([one.length for one in self.held_out], self.config.batch_size)
            for number, group in enumerate(groups):
                batch = self._collated([self.held_out[i] for i in group], number)
                share = len(group) / len(self.held_out)
                for depth in self.depths:
                    found = self._loss((batch, depth))
                    for name, value in found.items():
                        total[name] += value.item() * share / len(self.depths)
                    if len(self.depths) > 1:
                        total[f"loss after {depth}"] += found["loss"].item() * share
        self.distiller.train()
        return dict(total)

    def _save(self, step: Step) -> None:
        if step.stopping or self.saving.due(step.done):
            self.log.flush()
            state = {"start": self.start, "best": self.best, "best_epoch": self.best_epoch}
            self.checkpoints.save(step.done, self.decisive, state=state | {"guard": self.guard.state()})
