"""What the cases of `litebert bench` share: contenders, texts, timing and cost formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from litebert.console import progress_bar
from litebert.data.batches import batches_by_length
from litebert.data.corpus import read_lines
from litebert.device import has_bfloat16
from litebert.errors import CheckpointError, ConfigError, DataError
from litebert.inference import Model
from litebert.interop.huggingface import named_tensors
from litebert.loading import load
from litebert.measure.timing import Timing, time_round_robin
from litebert.model import Albert, AlbertConfig, preset
from litebert.studies.benchmark.config import BenchmarkConfig
from litebert.train.options import Precision

OURS = "litebert"
PEER = "transformers"
COMPILED = f"{PEER}, compiled"
BATCH_COUNTS = {"cuda": 32, "cpu": 8}  # batches of texts, where lengths vary


@dataclass(frozen=True)
class Measurement:
    """One contender in one case: what one call takes."""

    timing: Timing
    tokens: float
    """Without padding."""
    operations: float
    """Floating-point operations by the model's formula."""
    traffic: float
    """Bytes read and written by the model's formula."""


@dataclass(frozen=True)
class BenchmarkCase:
    """A piece of work that all contenders do."""

    name: str
    dtype: torch.dtype
    """Of the matrix products."""
    measure: Callable[[], Mapping[str, Measurement]]


class Harness:
    """Settings, model, texts and timers of a run."""

    def __init__(self, config: BenchmarkConfig, device: torch.device, console: Console) -> None:
        self.config, self.device, self.console = config, device, console

    @cached_property
    def model(self) -> Model | None:
        return None if self.config.model is None else load(self.config.model)

    @cached_property
    def shape(self) -> AlbertConfig:
        shape = preset(self.config.preset) if self.model is None else self.model.config
        if max(self.config.length) > shape.max_position_embeddings:
            raise ConfigError(
                f"length={max(self.config.length)} must fit the model: {shape.max_position_embeddings} or less"
            )
        return shape

    def bf16(self, training: bool) -> bool:
        """bf16 for training wherever it is faster, for inference on a GPU."""
        return self.precision(training) != "fp32"

    def precision(self, training: bool) -> Precision:
        """Of litebert; the others have bf16 where litebert has fp8."""
        if self.config.precision == "auto":
            return "bf16" if self.device.type == "cuda" or (training and has_bfloat16(self.device)) else "fp32"
        return self.config.precision

    def peers(
        self, albert: Albert, kind: str, dtype: torch.dtype = torch.float32, **compiling: Any
    ) -> dict[str, tuple[Any, Any]]:
        """By name, transformers' model with the same weights, in this type, and how it is called."""
        models = {PEER: (first := transformers_model(albert, kind).to(self.device, dtype), first)}
        if self.device.type == "cuda" if self.config.compiled is None else self.config.compiled:
            second = transformers_model(albert, kind).to(self.device, dtype)
            models[COMPILED] = (second, torch.compile(second, **compiling))
        return models

    def groups(self, rows: int, tokens: int | None = None) -> list[list[list[int]]]:
        """Token ids in batches of similar lengths, of so many rows or tokens: from a file, or random with lengths of
        sentences."""
        most, data, count = max(self.config.length), self.config.data, BATCH_COUNTS[self.device.type] * rows
        if self.model is None or data is None:
            lengths_drawn = np.random.default_rng(self.config.seed).lognormal(3.1, 0.6, size=count)
            texts = self.random_ids(lengths_drawn.astype(int).clip(4, most).tolist())
        else:
            lines = list(islice((line for line in read_lines([data]) if line.strip()), count))
            if not lines:
                raise DataError(f"{data}: holds no text; give a file with a text per line")
            texts = [encoding.ids for encoding in self.model.tokenizer.encode(lines, max_length=most)]
        lengths = [len(text) for text in texts]
        batches = batches_by_length(lengths, rows) if tokens is None else batches_by_length(lengths, None, tokens)
        return [[texts[i] for i in batch] for batch in batches]

    def random_ids(self, lengths: Sequence[int]) -> list[list[int]]:
        """Random token ids of these lengths."""
        rng = np.random.default_rng(self.config.seed)
        return [rng.integers(5, self.shape.vocab_size, length).tolist() for length in lengths]

    def batch_of(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Padded ids, and a mask that is None where nothing is padded."""
        lengths = torch.tensor([len(text) for text in texts])
        longest = int(lengths.max())
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        real = torch.arange(longest) < lengths[:, None]
        return ids.to(self.device), None if bool(real.all()) else real.to(self.device)

    def timed(self, name: str, contenders: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        rounds = self.config.rounds
        torch.compiler.reset()  # shapes of earlier cases must not count against the limit of recompilations
        with self.progress(name, (rounds + 1) * len(contenders)) as advance:
            return time_round_robin(contenders, self.device, rounds, advance)

    @contextmanager
    def progress(self, name: str, turns: int) -> Iterator[Callable[[], None]]:
        """A progress bar; call what it yields after each turn."""
        if not self.console.is_terminal:
            self.console.print(f"measuring: {name}", highlight=False)
        with progress_bar(self.console, name, turns) as bar:
            yield lambda: bar.advance(bar.task_ids[0])


def dtype_of(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float32


def forward_flops(shape: AlbertConfig, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass over these texts."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    per_token = 8 * hidden * hidden + 4 * hidden * wide
    blocks = shape.num_hidden_layers * shape.inner_group_num
    return float(blocks * sum(length * (per_token + 4 * length * hidden) for length in lengths))


def forward_bytes(shape: AlbertConfig, tokens: int, bytes_each: int) -> float:
    """Bytes that it moves if the steps of a layer are not fused: its weights once per pass, and the inputs and outputs
    of every matrix product, attention, activation and norm."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    weights = 4 * hidden * hidden + 2 * hidden * wide
    blocks = shape.num_hidden_layers * shape.inner_group_num
    return float(bytes_each * blocks * (weights + tokens * (17 * hidden + 4 * wide)))


def transformers_model(albert: Albert, kind: str) -> Any:
    """transformers' model with the same weights."""
    import transformers

    known = transformers.AlbertConfig()
    settings = {name: value for name, value in albert.config.to_dict().items() if hasattr(known, name)}
    bare = kind == "AlbertModel"  # only hidden states are needed
    options = {"add_pooling_layer": False} if bare else {}
    model = getattr(transformers, kind)(transformers.AlbertConfig(**settings), **options)
    state = {name: tensor.cpu() for name, tensor in named_tensors(albert)}
    if bare:
        state = {name.removeprefix("albert."): tensor for name, tensor in state.items() if "pooler" not in name}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {name for name in missing if "decoder" in name or "position_ids" in name}
    if unexpected or set(missing) - tied:
        raise CheckpointError(f"transformers does not take these weights: {[*missing, *unexpected]}")
    return model
