"""Settings of `litebert bench`. No torch here: the command line builds its flags from this class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from litebert.checks import check_counts_and_seed
from litebert.errors import ConfigError

Kind = Literal["infer", "finetune", "pretrain"]


@dataclass(frozen=True)
class BenchmarkConfig:
    """What to measure, and on what."""

    POSITIONAL: ClassVar[str] = "what"

    what: tuple[Kind, ...] = ("infer", "finetune")
    """What to do in turns: infer, the vectors of texts, many and one at a time; finetune, steps of a classifier;
    pretrain, steps with their loader and log."""
    preset: Literal["tiny", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """The size of the model."""
    model: str | None = None
    """For infer and finetune: a model folder, in place of --preset."""
    data: Path | None = None
    """For pretrain: what `litebert prepare` wrote. For the others, with --model: a file of texts, a line each; without
    it, lengths are drawn as those of sentences fall."""
    length: tuple[int, ...] = (128,)
    """Tokens of a sequence."""
    batch_size: int | None = None
    """Sequences at once; by default 256 to infer on a GPU, 8 on a CPU (texts of many lengths: as many tokens as those
    have), 32 to fine-tune, and 65,536 tokens to pre-train on a GPU, 512 on a CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """auto: bf16 on a GPU and, for training, on a CPU with instructions for it; fp32 elsewhere. fp8, to infer and to
    pre-train on a newer GPU: our larger matrix products from eight bits, the others in bf16."""
    compiled: bool | None = None
    """Let transformers run under torch.compile too; by default on a GPU only."""
    rounds: int = 7
    """Turns that everybody takes; the median counts."""
    out: Path | None = None
    """Folder for bench.json and a page with drawings."""
    json: bool = False
    """Print JSON instead of a table."""
    seed: int = 0
    """Decides the weights and the texts."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        check_counts_and_seed(self, "rounds", *(["batch_size"] if self.batch_size is not None else []))
        if not self.what or not self.length or min(self.length) < 8:
            raise ConfigError("give something to measure, such as infer, and lengths of 8 or more")
        if self.precision == "fp8" and "finetune" in self.what:
            raise ConfigError(
                "precision=fp8: finetune takes no eight bits; say what to measure: litebert bench infer --precision fp8"
            )
        if "pretrain" in self.what and self.data is None:
            raise ConfigError("bench pretrain reads real text: give the shards of litebert prepare with --data")
        if "pretrain" in self.what and len(self.what) > 1:
            raise ConfigError(
                "--data is shards for pretrain and texts for the others; measure pretrain in a run of its own"
            )
        if self.data is not None and self.model is None and "pretrain" not in self.what:
            raise ConfigError(
                "--data without --model: whose tokenizer is to count the tokens of these texts? give both"
            )
