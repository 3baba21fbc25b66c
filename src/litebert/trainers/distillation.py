"""Distillation: a smaller model learns from a larger one, on texts without labels."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

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
from litebert.console import make_console, say
from litebert.data.batches import Batch, Example, batches_by_length, collate, epoch_batches, steps_per_epoch
from litebert.device import limit_shape_caches, pick_device, training_precision
from litebert.errors import ConfigError, DataError
from litebert.files import write_json
from litebert.inference import Model
from litebert.inference.early_exit import can_exit, measured_exits, quarters
from litebert.loading import load
from litebert.tasks import Similarity, TrainableTask
from litebert.tasks.answer import Answer
from litebert.tasks.tag import Tag
from litebert.train.loop import Step
from litebert.train.optimizers import adamw, warmup_linear
from litebert.train.save_schedule import SaveSchedule
from litebert.trainers.distill_config import SPEEDS, DistillConfig
from litebert.trainers.initial_model import default_learning_rate, load_trainable
from litebert.trainers.trainer import Trainer, content_settings

WEIGHT_DECAY = 0.01
VALIDATION_SHARE = 10  # every tenth text
MAX_EPOCHS, MIN_EPOCHS, TEXTS_TO_SEE = 20, 3, 50_000
"""By default so many epochs that this many texts are seen, within limits."""
EMBEDDING_FIT_TEXTS = 2048
"""Texts from which the embeddings of a converted BERT are initialised."""
MAP_FIT_TEXTS = 512
"""Texts from which the map from the student's hidden states to the teacher's is initialised."""
EMBEDDING_SIZE = 128
"""ALBERT's, for a converted BERT."""
FROM_BERT_RATE = 5
"""Factor of the learning rate for a converted BERT, whose weights are far from their optimum."""
RESUMABLE_CHANGES = {"out", "resume", "device", "save_every", "json", "test"}
"""Settings that may differ when a run is resumed."""


@dataclass(frozen=True)
class DistillationResult:
    """Lists begin with the teacher's value; the student's follow, one for each of its depths."""

    passes: list[int]
    milliseconds: list[float]
    """Encoder latency for one text of 64 tokens on this CPU."""
    parameters: tuple[int, int]
    distance: tuple[float, float]
    """From the teacher on the validation texts, before the first step and after the best epoch; mean over depths."""
    epoch: int
    """The best."""
    seconds: float
    metric: str = ""
    scores: list[float] | None = None
    exits: list[tuple[float, float, float]] = field(default_factory=list)
    """Early exit of an elastic classifier, on the validation texts: threshold, mean number of passes, and the fraction
    of texts with the answer of all passes."""
    score_before: float | None = None
    """Of a converted BERT, before the first step."""
    early: list[tuple[float, float]] = field(default_factory=list)
    """Early exit on the test texts at some speeds: mean number of passes and score."""


@dataclass(kw_only=True)
class DistillationSetup:
    """Teacher, student and texts of a run."""

    config: DistillConfig
    device: torch.device
    teacher: Model
    student: Model
    depths: list[int]
    """Passes after which the student answers."""
    examples: list[Example]
    held_out: list[Example]
    distiller: Distiller | TextDistiller
    """The module that learns."""
    score_before: float | None = None

    @property
    def epoch_steps(self) -> int:
        return steps_per_epoch(len(self.examples), self.config.batch_size)

    @property
    def epochs(self) -> int:
        return self.config.epochs or min(MAX_EPOCHS, max(MIN_EPOCHS, -(-TEXTS_TO_SEE // len(self.examples))))

    @property
    def uses_bf16(self) -> bool:
        return training_precision(self.config.precision, self.device) == "bf16"

    def collate(self, examples: Sequence[Example], number: int) -> Batch:
        """A batch on the device, with masked words if the student learns to predict them; `number` seeds the masks."""
        tokenizer = self.student.tokenizer
        batch = collate(list(examples), tokenizer.pad_id)
        if isinstance(self.distiller, Distiller) and self.distiller.hides:
            batch = mask_tokens(batch, tokenizer, np.random.default_rng([self.config.seed, number, 1]))
        return batch.to(self.device)

    def collate_groups(self, examples: Sequence[Example]) -> list[Batch]:
        groups = batches_by_length([one.length for one in examples], self.config.batch_size)
        return [self.collate([examples[i] for i in group], number) for number, group in enumerate(groups)]

    def settings(self) -> dict[str, str]:
        """What must not change before a run is resumed."""
        config = self.config
        names = [name for name in (config.teacher, config.from_bert, config.student) if name]
        weights = [folder_of(name) / "model.safetensors" for name in names]
        files = [config.data, *([config.valid] if config.valid else []), *(path for path in weights if path.is_file())]
        settings = {name: str(value) for name, value in asdict(config).items() if name not in RESUMABLE_CHANGES}
        return settings | content_settings(files) | {"bf16": str(self.uses_bf16)}


def distill(config: DistillConfig, console: Console | None = None) -> DistillationResult | None:
    """Train and save a student. Returns None when a stop was requested before the last step."""
    limit_shape_caches()
    console = console or make_console()
    began = time.perf_counter()
    setup = prepare_distillation(config)
    trainer = DistillationTrainer(setup, console)
    if not trainer.run():
        return None
    result = evaluate_distilled(trainer, time.perf_counter() - began)
    write_json(config.out / "finished.json", asdict(result))
    if trainer.best >= trainer.initial_distance:
        advice = "it needs more texts, more --epochs or another --learning-rate"
        say(console, f"the student has come no nearer to its teacher; {advice}")
    return result


def prepare_distillation(config: DistillConfig) -> DistillationSetup:
    """Load the teacher, make the student, read the texts, and initialise what needs no training."""
    device, teacher = pick_device(config.device), load_teacher(config)
    check_test_file(teacher, config.test, config.columns)
    torch.manual_seed(config.seed)  # for a new head
    student = initial_student(config, teacher)
    passes = student.config.num_hidden_layers
    teacher.to(device)
    whole_texts = compares_texts_only(teacher, student)
    examples = student_examples(config, config.data, teacher, student)
    if len(examples) < 2:
        raise DataError(f"{config.data}: {len(examples)} text is too few; give hundreds, or better thousands")
    if config.valid is None:
        count = -(-len(examples) // VALIDATION_SHARE)
        chosen = np.random.default_rng(config.seed).permutation(len(examples))[:count]
        held_out = [examples[i] for i in chosen.tolist()]
        examples = [examples[i] for i in np.delete(np.arange(len(examples)), chosen).tolist()]
    else:
        held_out = student_examples(config, config.valid, teacher, student)
    is_other_model = config.student is not None or config.from_bert is not None
    distiller: Distiller | TextDistiller = (
        TextDistiller(student, examples) if whole_texts else Distiller(student, teacher, mapped=is_other_model)
    )
    setup = DistillationSetup(
        config=config, device=device, teacher=teacher, student=student,
        depths=quarters(passes) if config.elastic else [passes], examples=examples, held_out=held_out,
        distiller=distiller.to(device),
    )  # fmt: skip
    if isinstance(distiller, Distiller):
        distiller.fit_map(setup.collate_groups(examples[:MAP_FIT_TEXTS]))
        if config.from_bert is not None and isinstance(distiller.bridge, torch.nn.Linear):
            fold_map_into_head(student, distiller.bridge)
    if config.test is not None and config.from_bert is not None:
        setup.score_before = score_on_cpu([student], config.test, config.columns)[1][0]
        student.to(device)
    return setup


def load_teacher(config: DistillConfig) -> Model:
    if config.from_bert is not None:
        return load_bert_teacher(config.from_bert)
    assert config.teacher is not None
    teacher = load_other_teacher(folder_of(config.teacher)) or load_trainable(config.teacher)
    if isinstance(teacher.task, Similarity):
        teacher.task = None  # its answers are cosines of its vectors, and those are learned
    return teacher


def initial_student(config: DistillConfig, teacher: Model) -> Model:
    """The student before the first step."""
    layers = teacher.config.num_hidden_layers
    if config.from_bert is not None:
        return _student_from_bert(config, teacher)
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


def _student_from_bert(config: DistillConfig, teacher: Model) -> Model:
    """An ALBERT initialised from a BERT."""
    size = min(EMBEDDING_SIZE, teacher.config.hidden_size) if config.embedding_size is None else config.embedding_size
    examples = read_examples(teacher, config.data, config.columns, EMBEDDING_FIT_TEXTS)
    windows = [Example([window]) for one in examples for window in one.sequences]
    groups = batches_by_length([one.length for one in windows], config.batch_size)
    batches = [collate([windows[i] for i in group], teacher.tokenizer.pad_id) for group in groups]
    passes = teacher.config.num_hidden_layers if config.passes is None else config.passes
    return make_student(teacher, albert_from_bert(teacher, batches, size, passes), passes)


def student_examples(config: DistillConfig, path: Path, teacher: Model, student: Model) -> list[Example]:
    """The student's inputs; where it has another tokenizer than its teacher, with the teacher's output for each."""
    examples = read_examples(student, path, config.columns)
    if isinstance(student.task, Tag | Answer):  # their windows can be learned one by one
        examples = [Example([window]) for one in examples for window in one.sequences]
    if not compares_texts_only(teacher, student):
        return examples
    outputs = teacher_targets(teacher, read_examples(teacher, path, config.columns))
    return [replace(one, target=row) for one, row in zip(examples, outputs, strict=True)]


class DistillationTrainer(Trainer[tuple[Batch, int]]):
    """A micro-batch is a batch and the depth after which the student answers."""

    command = "distill"
    unit = "texts"

    def __init__(self, setup: DistillationSetup, console: Console) -> None:
        config = setup.config
        factor = 1 if config.from_bert is None else FROM_BERT_RATE
        learning_rate = config.learning_rate or default_learning_rate(setup.student) * factor
        steps = setup.epochs * setup.epoch_steps
        super().__init__(
            config,
            console,
            model=setup.distiller,
            optimizer=adamw(setup.distiller, weight_decay=WEIGHT_DECAY),
            schedule=warmup_linear(learning_rate, steps),
            steps=steps,
            device=setup.device,
            settings=setup.settings(),
            save_schedule=SaveSchedule.parse(config.save_every, setup.epoch_steps),
        )
        self.config: DistillConfig = config
        self.setup = setup
        self.initial_distance = self.best = math.inf
        self.best_epoch = 0
        self._lengths = np.array([one.length for one in setup.examples])
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    def introduction(self) -> list[str]:
        setup = self.setup
        passes = (setup.teacher.config.num_hidden_layers, setup.student.config.num_hidden_layers)
        return [
            f"from {passes[0]} passes to {passes[1]}: {len(setup.examples):,} training texts, {len(setup.held_out):,} "
            f"validation texts; {setup.epochs} epochs of {setup.epoch_steps:,} steps, on {self.device}"
        ]

    def micro_batches(self, step: int) -> list[tuple[Batch, int]]:
        epoch, within = divmod(step, self.setup.epoch_steps)
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = epoch_batches(self._lengths, self.config.batch_size, self.config.seed, epoch)
        depth = np.random.default_rng([self.config.seed, step]).choice(self.setup.depths).item()
        return [(self.setup.collate([self.setup.examples[i] for i in self._batches[within]], step), depth)]

    def loss(self, batch: tuple[Batch, int]) -> dict[str, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.setup.uses_bf16):
            figures: dict[str, Tensor] = self.setup.distiller(*batch)
        return figures

    def micro_batch_size(self) -> int:
        return self.config.batch_size

    def reduce_memory(self) -> bool:
        return False  # the loss is a mean over the whole batch

    def before_first_step(self) -> None:
        figures = self.measure()
        self.initial_distance = figures["loss"]
        self.report_validation(0, figures)

    def after_step(self, step: Step) -> None:
        self.report(step)
        if step.done % self.setup.epoch_steps == 0:
            self._validate(step.done)
        self.save(step)

    def _validate(self, done: int) -> None:
        figures = self.measure()
        self.report_validation(done, figures)
        if figures["loss"] <= self.best:
            self.best, self.best_epoch = figures["loss"], done // self.setup.epoch_steps
            student = self.setup.student
            if not isinstance(student.task, TrainableTask):
                student.sentence_map = self.setup.distiller.sentence_map
            student.save(self.config.out)

    @torch.inference_mode()
    def measure(self) -> dict[str, float]:
        """Distance between student and teacher on the validation texts, the mean over all depths."""
        setup, total = self.setup, defaultdict[str, float](float)
        setup.distiller.eval()
        groups = batches_by_length([one.length for one in setup.held_out], self.config.batch_size)
        for number, group in enumerate(groups):
            batch = setup.collate([setup.held_out[i] for i in group], number)
            share = len(group) / len(setup.held_out)
            for depth in setup.depths:
                figures = self.loss((batch, depth))
                for name, value in figures.items():
                    total[name] += value.item() * share / len(setup.depths)
                if len(setup.depths) > 1:
                    total[f"loss after {depth}"] += figures["loss"].item() * share
        setup.distiller.train()
        return dict(total)

    def state(self) -> dict[str, Any]:
        return {"start": self.initial_distance, "best": self.best, "best_epoch": self.best_epoch}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.initial_distance, self.best, self.best_epoch = state["start"], state["best"], state["best_epoch"]


def evaluate_distilled(trainer: DistillationTrainer, seconds: float) -> DistillationResult:
    """Measure the saved student, as users will load it, beside its teacher, both on the CPU."""
    setup, config = trainer.setup, trainer.config
    teacher, student = setup.teacher.to("cpu"), load(config.out)
    if config.elastic and can_exit(student.task):
        task: Any = student.task
        task.exits = measured_exits(scores_at_depths(setup, student.to(setup.device)), setup.depths)
        student.to("cpu").save(config.out)
    models = [teacher, *(student for _ in setup.depths)]
    passes = [teacher.passes, *setup.depths]
    metric, scores = "", list[float]()
    for model, count in zip(models, passes, strict=True) if config.test is not None else ():
        assert config.test is not None
        model.passes = count
        metric, values = score_on_cpu([model], config.test, config.columns)
        scores += values
    early = early_exit_scores(config, student) if config.elastic else []
    parameters = [sum(p.numel() for p in model.encoder.parameters() if p.requires_grad) for model in (teacher, student)]
    return DistillationResult(
        passes, encoder_latency_ms(models, passes), (parameters[0], parameters[1]),
        (trainer.initial_distance, trainer.best), trainer.best_epoch, seconds, metric, scores or None,
        getattr(student.task, "exits", []) if config.elastic else [], setup.score_before, early,
    )  # fmt: skip


def scores_at_depths(setup: DistillationSetup, student: Model) -> np.ndarray:  # (depths, N, C)
    """Scores of the validation texts after each depth, the mean over the windows of each text."""
    task, scores_by_depth = student.task, []
    assert task is not None
    for depth in setup.depths:
        student.passes = depth
        scores = student.score_examples(task, setup.held_out)
        scores_by_depth.append(np.stack([one["scores"].mean(0).numpy() for one in scores]))
    return np.stack(scores_by_depth)


def early_exit_scores(config: DistillConfig, student: Model) -> list[tuple[float, float]]:
    """Mean number of passes and score on the test texts, with early exit at some speeds."""
    exits, results = getattr(student.task, "exits", []), []
    student.passes = student.config.num_hidden_layers
    for speed in SPEEDS if exits and config.test is not None else ():
        if exits[-1].passes <= student.passes / speed:
            assert config.test is not None
            student.set_speed(speed)
            score = score_on_cpu([student], config.test, config.columns)[1][0]
            stopped = student.stopped_after
            mean_passes = sum(passes * count for passes, count in stopped.items()) / stopped.total()
            results.append((mean_passes, score))
    student.set_speed(1)
    return results
