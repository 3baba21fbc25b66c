"""What the cases of `litebert bench` have in common: who takes part, what is counted, and the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

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
from litebert.interop.huggingface import tensors_of
from litebert.loading import load
from litebert.measure.timing import Timing, interleaved
from litebert.model import Albert, AlbertConfig, preset
from litebert.train.settings import Precision

if TYPE_CHECKING:
    from litebert.commands.bench import Config

PEER = "transformers"
COMPILED = f"{PEER}, compiled"
BATCHES = {"cuda": 32, "cpu": 8}  # as many texts as fill these, where lengths vary


@dataclass(frozen=True)
class Measured:
    """What somebody needed for one call."""

    timing: Timing
    tokens: float
    """Real ones."""
    operations: float
    """Floating-point operations, by the model's formula."""
    traffic: float
    """Bytes to and from memory, by the same."""


@dataclass(frozen=True)
class Case:
    """One piece of work that several can do."""

    name: str
    dtype: torch.dtype
    """Of the matrix products."""
    measure: Callable[[], Mapping[str, Measured]]


class Arena:
    """Where everybody meets."""

    def __init__(self, config: Config, device: torch.device, console: Console) -> None:
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
        """Training takes it wherever it is faster; who only reads, on a GPU."""
        return self.precision(training) != "fp32"

    def precision(self, training: bool) -> Precision:
        """Ours; the others have bf16 where we have fp8."""
        if self.config.precision == "auto":
            return "bf16" if self.device.type == "cuda" or (training and has_bfloat16(self.device)) else "fp32"
        return self.config.precision

    def peers(
        self, albert: Albert, kind: str, dtype: torch.dtype = torch.float32, **compiling: Any
    ) -> dict[str, tuple[Any, Any]]:
        """By name, transformers' model with the same weights, in this type, and how it is called."""
        found = {PEER: (first := peer_of(albert, kind).to(self.device, dtype), first)}
        if self.device.type == "cuda" if self.config.compiled is None else self.config.compiled:
            second = peer_of(albert, kind).to(self.device, dtype)
            found[COMPILED] = (second, torch.compile(second, **compiling))
        return found

    def groups(self, rows: int, tokens: int | None = None) -> list[list[list[int]]]:
        """Ids of texts, in batches of similar lengths, of so many rows or tokens: those of a file, or made up, as long
        as sentences are."""
        most, data, count = max(self.config.length), self.config.data, BATCHES[self.device.type] * rows
        if self.model is None or data is None:
            drawn = np.random.default_rng(self.config.seed).lognormal(3.1, 0.6, size=count)
            texts = self.made_up(drawn.astype(int).clip(4, most).tolist())
        else:
            lines = list(islice((line for line in read_lines([data]) if line.strip()), count))
            if not lines:
                raise DataError(f"{data}: holds no text; give a file with a text per line")
            texts = [encoding.ids for encoding in self.model.tokenizer.encode(lines, max_length=most)]
        lengths = [len(text) for text in texts]
        batches = batches_by_length(lengths, rows) if tokens is None else batches_by_length(lengths, None, tokens)
        return [[texts[i] for i in batch] for batch in batches]

    def made_up(self, lengths: Sequence[int]) -> list[list[int]]:
        """Ids of texts of these lengths."""
        chance = np.random.default_rng(self.config.seed)
        return [chance.integers(5, self.shape.vocab_size, length).tolist() for length in lengths]

    def batch_of(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Their ids, and which are real; None where all are."""
        lengths = torch.tensor([len(text) for text in texts])
        longest = int(lengths.max())
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        real = torch.arange(longest) < lengths[:, None]
        return ids.to(self.device), None if bool(real.all()) else real.to(self.device)

    def timed(self, name: str, contenders: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
        rounds = self.config.rounds
        torch.compiler.reset()  # the shapes of former cases shall not count against a limit of recompilations
        with self.progress(name, (rounds + 1) * len(contenders)) as advance:
            return interleaved(contenders, self.device, rounds, advance)

    @contextmanager
    def progress(self, name: str, turns: int) -> Iterator[Callable[[], None]]:
        """A bar over them; call it after each."""
        if not self.console.is_terminal:
            self.console.print(f"measuring: {name}", highlight=False)
        with progress_bar(self.console, name, turns) as bar:
            yield lambda: bar.advance(bar.task_ids[0])


def dtype_of(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float32


def forward_operations(shape: AlbertConfig, lengths: Sequence[int]) -> float:
    """Floating-point operations that the vectors of these texts cost."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    per_token = 8 * hidden * hidden + 4 * hidden * wide
    blocks = shape.num_hidden_layers * shape.inner_group_num
    return float(blocks * sum(length * (per_token + 4 * length * hidden) for length in lengths))


def forward_traffic(shape: AlbertConfig, tokens: int, bytes_each: int) -> float:
    """Bytes that the same move where the steps of a layer take turns: its weights once per pass, and what goes into
    and comes out of a matrix product, attention, an activation or a norm."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    weights = 4 * hidden * hidden + 2 * hidden * wide
    blocks = shape.num_hidden_layers * shape.inner_group_num
    return float(bytes_each * blocks * (weights + tokens * (17 * hidden + 4 * wide)))


def peer_of(albert: Albert, kind: str) -> Any:
    """transformers' model with the same weights."""
    import transformers

    known = transformers.AlbertConfig()
    settings = {name: value for name, value in albert.config.to_dict().items() if hasattr(known, name)}
    bare = kind == "AlbertModel"  # of which only the vectors of tokens are wanted
    options = {"add_pooling_layer": False} if bare else {}
    model = getattr(transformers, kind)(transformers.AlbertConfig(**settings), **options)
    state = {name: tensor.cpu() for name, tensor in tensors_of(albert)}
    if bare:
        state = {name.removeprefix("albert."): tensor for name, tensor in state.items() if "pooler" not in name}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {name for name in missing if "decoder" in name or "position_ids" in name}
    if unexpected or set(missing) - tied:
        raise CheckpointError(f"transformers does not take these weights: {[*missing, *unexpected]}")
    return model
