"""`litebert bench finetune` and `litebert bench pretrain`: whole steps of training."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.data.shards import Shards
from litebert.measure.timing import Timing, synchronize
from litebert.model import Albert, preset, pretraining_heads
from litebert.studies.benchmark.harness import (
    COMPILED,
    OURS,
    BenchmarkCase,
    Harness,
    Measurement,
    dtype_of,
    forward_bytes,
    forward_flops,
)
from litebert.tasks import Classify
from litebert.tasks.objective import objective
from litebert.train.cuda_graphs import StepGraphs
from litebert.train.loop import Step
from litebert.train.optimizers import adamw
from litebert.trainers.finetuning import GRAPH_LENGTH_MULTIPLE, MicroBatch
from litebert.trainers.pretrain_config import PretrainConfig
from litebert.trainers.pretraining import pretrain

STEPS_PER_TURN = {"cuda": 20, "cpu": 5}  # that somebody takes in one turn of pre-training
TOKENS_PER_STEP = {"cuda": 1 << 16, "cpu": 1 << 9}  # in a step of pre-training
LEARNING_RATE = 1e-5
COMPILED_MULTIPLE, MAX_COMPILED_SHAPES = 32, 4  # it goes back to plain calls after eight


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def finetuning(harness: Harness) -> BenchmarkCase:
    """Steps of a classifier, on batches of similar lengths; on a GPU ours are recorded, as `litebert finetune` does."""
    groups, bf16, task = (
        harness.groups(harness.config.batch_size or 32),
        harness.bf16(training=True),
        Classify(["no", "yes"]),
    )
    albert = Albert(harness.shape, {task.head_name: task.head(harness.shape)})
    if harness.model is not None:
        albert.encoder.load_state_dict(harness.model.encoder.state_dict())
    batches = []
    for group in groups:
        ids, real = harness.batch_of(group)
        targets = torch.randint(0, 2, (len(group),), device=harness.device)
        owner = torch.arange(len(group), device=harness.device)
        batches.append(Batch(ids, real, torch.zeros_like(ids), owner, len(group), owner, targets))
    lengths = [len(text) for group in groups for text in group]
    name = f"fine-tuning, {len(groups)} × {len(groups[0])} texts of {min(lengths)} to {max(lengths)}"

    def measure() -> dict[str, Measurement]:
        def theirs(model: Any, batch: Batch) -> Tensor:
            output = model(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids,
                labels=batch.targets,
            )  # fmt: skip
            return output.loss

        def ours(micro_batch: MicroBatch) -> Mapping[str, Tensor]:
            with torch.autocast(harness.device.type, torch.bfloat16, enabled=bf16):
                return objective(task, albert, micro_batch.batch)

        def recorded(batch: Batch) -> Tensor:
            micro_batch = MicroBatch(0, batch, 1.0, fits_graph=graphs is not None)
            return (ours(micro_batch) if graphs is None else graphs(ours, micro_batch))["loss"]

        contenders: dict[str, Callable[[], None]] = {}
        # torch.compile for shapes that change did not end in four minutes, so that one is compiled for a few shapes
        multiple = -(-max(lengths) // (MAX_COMPILED_SHAPES * COMPILED_MULTIPLE)) * COMPILED_MULTIPLE
        shapes = {COMPILED: [_pad_to_multiple(batch, multiple) for batch in batches]}
        for who, (model, call) in harness.peers(
            albert, "AlbertForSequenceClassification", dynamic=False, mode="reduce-overhead"
        ).items():
            optimizer, inputs = (
                torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True),
                shapes.get(who, batches),
            )
            contenders[who] = partial(_train_steps, model.train(), optimizer, partial(theirs, call), inputs, bf16)
        albert.to(harness.device).train()
        optimizer = adamw(albert, weight_decay=0.01)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        graphs = StepGraphs(list(albert.parameters())) if harness.device.type == "cuda" else None
        own = batches if graphs is None else [_pad_to_multiple(batch, GRAPH_LENGTH_MULTIPLE) for batch in batches]
        contenders[OURS] = partial(_train_steps, albert, optimizer, recorded, own, bf16)
        operations = 3 * forward_flops(harness.shape, lengths)
        bytes_each = dtype_of(bf16).itemsize
        traffic = 3 * sum(forward_bytes(harness.shape, sum(map(len, group)), bytes_each) for group in groups)
        timings = harness.timed(name, contenders)
        return {who: Measurement(timing, sum(lengths), operations, traffic) for who, timing in timings.items()}

    return BenchmarkCase(name, dtype_of(bf16), measure)


def _train_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Batch], Tensor],
    batches: list[Batch],
    bf16: bool,
) -> None:
    """A step on every batch."""
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=bf16):
            value = loss(batch)
        if value.requires_grad:  # else the gradients are there already
            value.backward()
        del value  # it knows the stream on which it was made, and no recording on another may meet it
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _pad_to_multiple(batch: Batch, multiple: int) -> Batch:
    """With so much padding that shapes come again."""
    more = -batch.input_ids.shape[1] % multiple
    return replace(
        batch, input_ids=F.pad(batch.input_ids, (0, more)), attention_mask=F.pad(batch.real, (0, more)),
        token_type_ids=F.pad(batch.token_type_ids, (0, more)),
    )  # fmt: skip


# --- pre-training -----------------------------------------------------------------------------------------------------


def pretraining(harness: Harness) -> Iterator[BenchmarkCase]:
    return (_pretraining(harness, length) for length in harness.config.length)


def _pretraining(harness: Harness, length: int) -> BenchmarkCase:
    """Ours with loader, optimizer and log; theirs on made-up sequences that fill every column."""
    config, bf16 = harness.config, harness.bf16(training=True)
    assert config.data is not None
    rows = config.batch_size or max(1, TOKENS_PER_STEP[harness.device.type] // length)
    name = f"pre-training, {rows} × {length}"
    settings = PretrainConfig(
        data=config.data, out=Path(), preset=config.preset,
        steps=(config.rounds + 2) * STEPS_PER_TURN[harness.device.type], batch_size=rows,
        length=length, depth_ramp="", precision=harness.precision(training=True),
        validate_every=1 << 30, seed=config.seed, device=config.device,
        # on a CPU, batches that threads make while others have their turn would cost us nothing; on a GPU four of
        # twenty are made then, for which a step of base and larger would not have waited either
        workers=2 if harness.device.type == "cuda" else 0,
    )  # fmt: skip

    def measure() -> dict[str, Measurement]:
        shape = preset(config.preset, vocab_size=Shards(settings.data).tokenizer.vocab_size)
        ids = torch.randint(5, shape.vocab_size, (rows, length), device=harness.device)
        labels = ids.where(torch.rand(rows, length, device=harness.device) < settings.mask_rate, -100)
        order = torch.randint(0, 2, (rows,), device=harness.device)

        def theirs(model: Any, _: Batch) -> Tensor:
            return model(input_ids=ids, labels=labels, sentence_order_label=order).loss

        torch.compiler.reset()  # else another length than the last is compiled for all lengths, which takes minutes
        peers = {}
        made_up = [Batch(ids, None, torch.zeros_like(ids))]
        albert = Albert(shape, pretraining_heads(shape))
        for who, (model, call) in harness.peers(albert, "AlbertForPreTraining").items():
            optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
            peers[who] = partial(_train_steps, model.train(), optimizer, partial(theirs, call), made_up, bf16)
        with tempfile.TemporaryDirectory() as folder, harness.progress(name, config.rounds + 2) as advance:
            turns = RoundRobinHook(peers, harness.device, advance)
            own = replace(settings, out=Path(folder) / "run")
            if not pretrain(own, Console(quiet=True), device=harness.device, hooks=[turns]):
                raise KeyboardInterrupt  # it stops cleanly, and so do we
        head = 2 * shape.embedding_size * (shape.hidden_size + shape.vocab_size)
        per_token = 3 * (forward_flops(shape, [length]) / length + settings.mask_rate * head)
        tokens = {who: float(rows * length) for who in peers} | {OURS: turns.tokens}
        bytes_each = dtype_of(bf16).itemsize
        return {
            who: Measurement(
                timing, tokens[who], tokens[who] * per_token,
                3 * forward_bytes(shape, round(tokens[who]), bytes_each),
            )
            for who, timing in turns.timings().items()
        }  # fmt: skip

    return BenchmarkCase(name, dtype_of(bf16), measure)


class RoundRobinHook:
    """A hook that lets others take as many steps after every few of ours."""

    def __init__(
        self, peers: Mapping[str, Callable[[], object]], device: torch.device, advance: Callable[[], None]
    ) -> None:
        self._peers, self._device, self._advance = peers, device, advance
        self._seconds: dict[str, list[float]] = {who: [] for who in (*peers, OURS)}
        self._memory: dict[str, int | None] = dict.fromkeys(self._seconds)
        self._tokens: list[float] = []
        self._steps = STEPS_PER_TURN[device.type]
        self._resume()

    def __call__(self, step: Step) -> None:
        self._tokens.append(step.metrics["tokens"])
        if step.done % self._steps:
            return
        # the first turn compiles and fills caches, the last one validates and saves
        counts = self._steps < step.done < step.total
        self._keep(OURS, counts)
        for who, peer in self._peers.items():
            self._resume()
            for _ in range(self._steps):
                peer()
            self._keep(who, counts)
        self._advance()
        self._resume()

    @property
    def tokens(self) -> float:
        """Real ones in a step of ours."""
        return sum(self._tokens) / len(self._tokens)

    def timings(self) -> dict[str, Timing]:
        return {who: Timing(seconds, self._memory[who]) for who, seconds in self._seconds.items()}

    def _resume(self) -> None:
        synchronize(self._device)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        self._began = time.perf_counter()

    def _keep(self, who: str, counts: bool) -> None:
        synchronize(self._device)
        if counts:
            self._seconds[who].append((time.perf_counter() - self._began) / self._steps)
        if self._device.type == "cuda":  # in the first turn too: later a recorded step has its memory already
            needed = torch.cuda.max_memory_allocated(self._device) - self._before
            self._memory[who] = max(needed, self._memory[who] or 0)
