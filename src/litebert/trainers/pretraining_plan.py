"""From the settings of a pre-training run to its parts."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from litebert.data.corpus import read_lines
from litebert.data.masking import Masking
from litebert.data.pretraining import PretrainingData, TrainingStage
from litebert.data.shards import Shards
from litebert.device import training_precision
from litebert.errors import ConfigError
from litebert.model import Albert, AlbertConfig, preset, pretraining_heads
from litebert.model.albert import run_block
from litebert.model.backends import AutoBackend, EagerBackend, enable_fp8
from litebert.model.backends.base import has_triton
from litebert.tasks.pretraining import PretrainingObjective, grow_positions, grow_vocabulary, unigram_entropy
from litebert.tokenizer import Tokenizer
from litebert.train.averaging import Average, MasterWeights
from litebert.train.distributed import check_parallel, distribute
from litebert.train.optimizers import OPTIMIZERS, scaled_rate, schedule
from litebert.train.ramps import Ramp
from litebert.train.ranks import Ranks
from litebert.train.settings import Strategies
from litebert.train.strategies import fitted, project, tune, weight_at
from litebert.trainers.initial_model import load_trainable
from litebert.trainers.pretrain_config import DEPTH_RAMP, PretrainConfig

RATES = {"adamw": 0.00176, "lamb": 0.00176, "muon": 0.005}
"""Highest learning rates for the paper's batch of 4096; docs/log.md has the runs behind them."""
TOKENS_AT_ONCE = {"cuda": 1 << 18, "cpu": 1 << 13}
"""Of a micro-batch, unless the user says otherwise."""
VALIDATION_ROWS_AT_ONCE = 64
FREE = ("data", "out", "device", "micro_batch", "cuda_graphs", "compile", "workers", "validate_every",
        "validation_rows", "save_every", "gradient_checkpointing", "resume")  # fmt: skip
"""Settings that a resumed run may change: they do not decide what is learned."""


class Parts:
    """Data, model and optimizer of a run."""

    def __init__(self, config: PretrainConfig, ranks: Ranks, device: torch.device) -> None:
        check_parallel(config.parallel, config.optimizer, config.precision, config.average)
        self.config, self.device = config, device
        self.shards = Shards(config.data)
        if ranks.rank == 0:
            self.shards.verify()
        self._make_data(ranks)
        self._make_model()
        self._refuse_layers_out()
        self.call, self.ranks = distribute(self.objective, ranks, config.parallel, unused=self._leaves_layers_out())
        self._make_optimizer()
        enable_fp8(self.albert.encoder.train(), self.precision == "fp8")
        most = config.micro_batch or max(1, TOKENS_AT_ONCE[device.type] // config.length)
        self.pieces = -(-config.batch_size // (ranks.world_size * most))
        self.decisive = {key: value for key, value in asdict(config).items() if key not in FREE}
        index = self.shards.index
        self.decisive |= {
            "precision": self.precision,
            "tokenizer": index.fingerprint[:12],
            "content of --data": index.digest[:12],
        }

    def depth_at(self, step: int) -> int:
        """Passes of a step. One alone cannot look anything up in what it has read, so there are two at least."""
        layers = self.shape.num_hidden_layers
        return min(layers, max(2, self.depth_ramp.at(step, self.config.steps, layers)))

    @property
    def epoch_steps(self) -> int:
        return max(1, self.shards.training.tokens // (self.config.batch_size * self.config.length))

    def introduction(self, start: int) -> list[str]:
        """What a user wants to know before the first step."""
        config = self.config
        parameters = sum(p.numel() for p in self.albert.parameters())
        epochs = self.data.tokens_before(config.steps) / self.shards.training.tokens
        lines = [
            f"ALBERT {config.model or config.preset}: {parameters:,} parameters, "
            f"{self.shards.training.tokens:,} tokens of text (about {epochs:.1f} epochs), "
            f"on {self.device} in {self.precision}"
            + (f", {self.ranks.world_size} processes" if self.ranks.world_size > 1 else "")
            + (f", from step {start}" if start else "")
        ]
        if config.learning_rate is None:
            lines.append(
                f"learning rate {self.peak:.2e}: {RATES[config.optimizer]} for {config.optimizer} with 4096 sequences, "
                f"× √({config.batch_size}/4096)"
            )
        if self.grown:
            lines.append(
                f"{config.model} has read sequences of up to {self.grown.start} tokens: its positions up to "
                f"{self.grown.stop} go on as those do"
            )
        if self.held_out is None:
            lines.append("the shards hold no document out, so there is no validation")
        return lines

    def new_model(self) -> Albert:
        """One of the same shape, on the CPU."""
        return Albert(self.shape, pretraining_heads(self.shape))

    def _make_data(self, ranks: Ranks) -> None:
        config, tokenizer = self.config, self.shards.tokenizer
        settings: dict[str, Any] = {
            "masking": Masking(config.mask, config.mask_rate, config.max_ngram, config.mask_share, config.random_share),
            "sentences": config.sentences,
            "short_share": config.short_share,
            "exclude": _excluded(config.mask_exclude, tokenizer),
        }
        self.data = PretrainingData(self.shards.training, tokenizer, _stages(config), seed=config.seed, **settings)
        self.validation_batches = -(-config.validation_rows // VALIDATION_ROWS_AT_ONCE)
        rows = -(-config.validation_rows // self.validation_batches)
        fewest = min(rows, *(stage.batch_size for stage in self.data.stages))
        if fewest < ranks.world_size:
            raise ConfigError(
                f"{fewest} sequences cannot be shared out over {ranks.world_size} processes; raise --batch-size, "
                "the shares of --batch-ramp or --validation-rows, or start fewer processes"
            )
        self.held_out = None
        if self.shards.held_out.tokens >= 2:
            self.held_out = PretrainingData(
                self.shards.held_out, tokenizer, [TrainingStage(0, rows, config.length)], seed=1, **settings
            )
        self.unigram = unigram_entropy(self.shards.training.ids)
        # A trained model knows how to use its depth: a ramp would make it forget.
        ramp = ("" if config.model else DEPTH_RAMP) if config.depth_ramp is None else config.depth_ramp
        self.depth_ramp = Ramp.parse(ramp, "depth_ramp")

    def _make_model(self) -> None:
        config, tokenizer = self.config, self.shards.tokenizer
        torch.manual_seed(config.seed)
        self.shape = _shape(config, tokenizer)
        self.albert, known = (self.new_model(), 0) if config.model is None else _continued(config.model, tokenizer)
        self.shape = self.albert.config
        if config.length > self.shape.max_position_embeddings:
            limit = self.shape.max_position_embeddings
            raise ConfigError(f"length={config.length} is over the model's {limit}; use {limit} or less")
        grew = known > 0 and grow_positions(self.albert.encoder, known, config.length)
        self.grown = range(known, config.length) if grew else range(0)
        """Positions that the model had not been trained on."""
        self.albert.to(self.device)
        self.albert.encoder.gradient_checkpointing = config.gradient_checkpointing
        cuda = self.device.type == "cuda"
        self.precision = training_precision(config.precision, self.device)
        if self.precision == "bf16-pure":
            self.albert.bfloat16()
        self.objective = PretrainingObjective(self.albert, config.order_weight)
        if cuda if config.compile is None else config.compile:
            compiled = EagerBackend(torch.compile(run_block, dynamic=True))
            self.albert.encoder.backend = AutoBackend(eager=compiled)
            if self.precision == "fp32" or not has_triton(self.device):
                self.objective.score = torch.compile(self.objective.score, dynamic=True)

    def _make_optimizer(self) -> None:
        config, encoder = self.config, self.albert.encoder
        own = Strategies(**{field.name: getattr(config, field.name) for field in fields(Strategies)})
        self.strategies = fitted(own, self.shape.num_hidden_layers, self.shape.initializer_range)
        if own.bounds == "view" and self.shape.sharing == "all":
            raise ConfigError(
                "bounds=view shows every pass of a shared layer another weight, which no saved ALBERT can express; "
                "use --bounds project, or --sharing none"
            )
        depths = {f"encoder.{name}": users for name, users in encoder.depths_of().items()}
        self.optimizer = OPTIMIZERS[config.optimizer](
            self.albert,
            weight_decay=config.weight_decay,
            betas=(0.9, 0.98),
            tuning=tune(self.strategies, self.albert, depths),
        )
        self.optimizer.register_step_post_hook(project)
        if self.precision == "bf16-pure":
            self.optimizer = MasterWeights(self.optimizer)
        encoder.weight_at = weight_at(self.strategies, encoder.depths_of)
        self.average = Average(self.albert, config.average) if config.average else None
        scaled = scaled_rate(RATES[config.optimizer], config.batch_size)
        self.peak = scaled if config.learning_rate is None else config.learning_rate
        self.rate = schedule(
            config.schedule,
            self.peak,
            config.steps,
            warmup_share=config.warmup,
            hot_start=config.hot_start,
            power=config.poly_power,
            decay_share=config.decay_share,
        )

    def _leaves_layers_out(self) -> bool:
        """Does a shallow step leave parameters without a gradient?"""
        several = self.shape.sharing != "all" or self.shape.num_hidden_groups > 1
        return several and bool(self.depth_ramp.stages)

    def _refuse_layers_out(self) -> None:
        """What cannot be had while some layers are not there yet."""
        config = self.config
        if not self._leaves_layers_out():
            return
        refused = {
            "--model": config.model is not None,  # its upper layers would be overwritten by copies of the lower ones
            "--parallel fsdp": config.parallel == "fsdp",
            "--layer-decay-rate": config.layer_decay_rate != 1,
            "--depth-factors": bool(config.depth_factors),
            "--unfreeze-steps": config.unfreeze_steps > 0,
        }
        if any(refused.values()):
            names = ", ".join(name for name, given in refused.items() if given)
            raise ConfigError(
                f'{names}: not while layers that are not shared are stacked one after the other; add --depth-ramp ""'
            )


def _stages(config: PretrainConfig) -> list[TrainingStage]:
    batch, length = Ramp.parse(config.batch_ramp, "batch_ramp"), Ramp.parse(config.length_ramp, "length_ramp")
    return [
        TrainingStage(
            step, batch.at(step, config.steps, config.batch_size), length.at(step, config.steps, config.length)
        )
        for step in sorted({0, *batch.changes(config.steps), *length.changes(config.steps)})
    ]


def _shape(config: PretrainConfig, tokenizer: Tokenizer) -> AlbertConfig:
    changes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    changes |= {"sharing": config.sharing, "relative_attention_distance": config.attention_distance}
    changes |= {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
    for name, given in (("num_hidden_layers", config.layers), ("embedding_size", config.embedding_size)):
        if given is not None:
            changes[name] = given
    if config.hidden_size is not None:
        wanted = max(1, config.hidden_size // 64)
        heads = next(number for number in range(wanted, 0, -1) if config.hidden_size % number == 0)
        changes |= {"hidden_size": config.hidden_size, "num_attention_heads": heads}
        changes["intermediate_size"] = 4 * config.hidden_size
    return preset(config.preset, **changes)


def _continued(name: str, tokenizer: Tokenizer) -> tuple[Albert, int]:
    """A trained model with both pre-training heads, and the shards' vocabulary: its own, or one that begins with it;
    and how long its texts are."""
    model = load_trainable(name)
    mine, theirs = model.tokenizer.vocabulary(), tokenizer.vocabulary()
    if theirs[: len(mine)] != mine:
        at = next(number for number, token in enumerate(mine) if number >= len(theirs) or theirs[number] != token)
        raise ConfigError(
            f"{name}: its vocabulary is not the shards' (they differ from token {at} on); prepare the text with "
            f"--tokenizer {name}, or with an extension of it (litebert tokenizer --import-from {name} --add words.txt)"
        )
    heads: dict[str, nn.Module] = pretraining_heads(model.config)
    albert = Albert(model.config, heads | {name: head for name, head in model.albert.heads.items() if name in heads})
    albert.encoder = model.encoder
    return albert if len(mine) == len(theirs) else grow_vocabulary(albert, len(theirs)), model.max_length


def _excluded(names: Sequence[str], tokenizer: Tokenizer) -> np.ndarray | None:
    """(V,) True for tokens that are never hidden: punctuation, and the words of the files named."""
    if not names:
        return None
    absent = [name for name in names if name != "punctuation" and not Path(name).is_file()]
    if absent:
        raise ConfigError(f"mask_exclude={absent[0]}: neither `punctuation` nor a file with one word per line")
    words = {line.strip() for name in names if name != "punctuation" for line in read_lines([Path(name)])}
    pieces = {tuple(encoding.ids[1:-1]) for encoding in tokenizer.encode(sorted(words))} if words else set()
    whole = {ids[0] for ids in pieces if len(ids) == 1}
    tokens = [token.strip("▁#") for token in tokenizer.vocabulary()]
    marks = "punctuation" in names
    return np.array(
        [
            number in whole or (marks and token != "" and all(unicodedata.category(c)[0] in "PS" for c in token))
            for number, token in enumerate(tokens)
        ]
    )
