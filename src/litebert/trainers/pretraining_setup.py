"""From the settings of a pre-training run to its data, model and optimizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
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
from litebert.train.optimizers import OPTIMIZERS, Schedule, scaled_rate, schedule
from litebert.train.options import Strategies
from litebert.train.ramps import Ramp
from litebert.train.ranks import Ranks
from litebert.train.strategies import parameter_options, project, strategies_for_model, weight_hook
from litebert.trainers.initial_model import load_trainable
from litebert.trainers.pretrain_config import DEPTH_RAMP, PretrainConfig

LEARNING_RATES = {"adamw": 0.00176, "lamb": 0.00176, "muon": 0.005}
"""Peak learning rates for the paper's batch of 4096; docs/log.md has the runs behind them."""
MICRO_BATCH_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 13}
"""Size of a micro-batch unless the user sets it."""
VALIDATION_BATCH = 64
VALIDATION_SEED = 1
MIN_DEPTH = 2
"""With a single pass no token can look anything up in what attention has read."""
RESUMABLE_CHANGES = (
    "data", "out", "device", "micro_batch", "cuda_graphs", "compile", "workers", "validate_every", "validation_rows",
    "save_every", "gradient_checkpointing", "resume",
)  # fmt: skip
"""Settings that may differ when a run is resumed: they do not change what is learned."""


@dataclass(frozen=True)
class Corpus:
    """What is trained and validated on."""

    shards: Shards
    training: PretrainingData
    held_out: PretrainingData | None
    validation_batches: int
    unigram_loss: float
    """Loss of a model that knows only token frequencies."""


@dataclass
class PretrainingSetup:
    """Data, model and optimizer of a run."""

    config: PretrainConfig
    device: torch.device
    ranks: Ranks
    corpus: Corpus
    depth_ramp: Ramp
    albert: Albert
    objective: PretrainingObjective
    compute: nn.Module
    """The objective as each rank must call it."""
    precision: str
    strategies: Strategies
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    peak_rate: float
    average: Average | None
    new_positions: range
    """Positions that the initial model had not been trained on."""

    @property
    def model_config(self) -> AlbertConfig:
        return self.albert.config

    def depth_at(self, step: int) -> int:
        """Passes of a step."""
        layers = self.model_config.num_hidden_layers
        return min(layers, max(MIN_DEPTH, self.depth_ramp.at(step, self.config.steps, layers)))

    @property
    def epoch_steps(self) -> int:
        return max(1, self.corpus.shards.training.tokens // (self.config.batch_size * self.config.length))

    @property
    def initial_splits(self) -> int:
        """Micro-batches per step and rank."""
        config = self.config
        largest = config.micro_batch or max(1, MICRO_BATCH_TOKENS[self.device.type] // config.length)
        return -(-config.batch_size // (self.ranks.world_size * largest))

    def settings(self) -> dict[str, Any]:
        """What must not change before a run is resumed."""
        index = self.corpus.shards.index
        return {key: value for key, value in asdict(self.config).items() if key not in RESUMABLE_CHANGES} | {
            "precision": self.precision,
            "tokenizer": index.fingerprint[:12],
            "content of --data": index.digest[:12],
        }

    def new_model(self) -> Albert:
        """An untrained model of the same architecture, on the CPU."""
        return Albert(self.model_config, pretraining_heads(self.model_config))

    def introduction(self) -> list[str]:
        """What a user wants to know before the first step."""
        config, corpus = self.config, self.corpus
        parameters = sum(p.numel() for p in self.albert.parameters())
        tokens = corpus.shards.training.tokens
        lines = [
            f"ALBERT {config.model or config.preset}: {parameters:,} parameters, {tokens:,} tokens of text (about "
            f"{corpus.training.tokens_before(config.steps) / tokens:.1f} epochs), on {self.device} in {self.precision}"
            + (f", {self.ranks.world_size} processes" if self.ranks.world_size > 1 else "")
        ]
        if config.learning_rate is None:
            lines.append(
                f"learning rate {self.peak_rate:.2e}: {LEARNING_RATES[config.optimizer]} for {config.optimizer} with "
                f"4096 sequences, × √({config.batch_size}/4096)"
            )
        if self.new_positions:
            lines.append(
                f"{config.model} has read sequences of up to {self.new_positions.start} tokens: its positions up to "
                f"{self.new_positions.stop} are extrapolated from those"
            )
        if corpus.held_out is None:
            lines.append("the shards contain no held-out documents, so there is no validation")
        return lines


def prepare_pretraining(config: PretrainConfig, ranks: Ranks, device: torch.device) -> PretrainingSetup:
    """Open the data, build or load the model, and make its optimizer."""
    check_parallel(config.parallel, config.optimizer, config.precision, config.average)
    corpus = open_corpus(config, ranks)
    # A pre-trained model uses its whole depth already: a ramp would make it forget.
    ramp = ("" if config.model else DEPTH_RAMP) if config.depth_ramp is None else config.depth_ramp
    depth_ramp = Ramp.parse(ramp, "depth_ramp")
    albert, new_positions = build_model(config, corpus.shards.tokenizer)
    precision = training_precision(config.precision, device)
    albert.to(device)
    albert.encoder.gradient_checkpointing = config.gradient_checkpointing
    if precision == "bf16-pure":
        albert.bfloat16()
    objective = PretrainingObjective(albert, config.order_weight)
    if config.compile or (config.compile is None and device.type == "cuda"):
        compile_model(albert, objective, precision, device)
    partial_depth = bool(depth_ramp.stages) and not _shares_one_layer(albert.config)
    if partial_depth:
        _refuse_with_partial_depth(config)
    compute, ranks = distribute(objective, ranks, config.parallel, unused=partial_depth)
    strategies = fitted_strategies(config, albert.config)
    optimizer = build_optimizer(config, albert, strategies)
    if precision == "bf16-pure":
        optimizer = MasterWeights(optimizer)
    albert.encoder.weight_at = weight_hook(strategies, albert.encoder.depths_of)
    enable_fp8(albert.encoder.train(), precision == "fp8")
    scaled = scaled_rate(LEARNING_RATES[config.optimizer], config.batch_size)
    peak_rate = scaled if config.learning_rate is None else config.learning_rate
    return PretrainingSetup(
        config, device, ranks, corpus, depth_ramp, albert, objective, compute, precision, strategies, optimizer,
        schedule(
            config.schedule, peak_rate, config.steps, warmup_share=config.warmup, hot_start=config.hot_start,
            power=config.poly_power, decay_share=config.decay_share,
        ),
        peak_rate, Average(albert, config.average) if config.average else None, new_positions,
    )  # fmt: skip


def open_corpus(config: PretrainConfig, ranks: Ranks) -> Corpus:
    """The shards, and the batches that are made of them."""
    shards = Shards(config.data)
    if ranks.rank == 0:
        shards.verify()
    tokenizer = shards.tokenizer
    masking: dict[str, Any] = {
        "masking": Masking(config.mask, config.mask_rate, config.max_ngram, config.mask_share, config.random_share),
        "sentences": config.sentences,
        "short_share": config.short_share,
        "exclude": unmaskable_tokens(config.mask_exclude, tokenizer),
    }
    training = PretrainingData(shards.training, tokenizer, _stages(config), seed=config.seed, **masking)
    validation_batches = -(-config.validation_rows // VALIDATION_BATCH)
    rows = -(-config.validation_rows // validation_batches)
    smallest = min(rows, *(stage.batch_size for stage in training.stages))
    if smallest < ranks.world_size:
        raise ConfigError(
            f"{smallest} sequences cannot be distributed over {ranks.world_size} processes; raise --batch-size, "
            "the shares of --batch-ramp or --validation-rows, or start fewer processes"
        )
    held_out = None
    if shards.held_out.tokens >= 2:
        stages = [TrainingStage(0, rows, config.length)]
        held_out = PretrainingData(shards.held_out, tokenizer, stages, seed=VALIDATION_SEED, **masking)
    return Corpus(shards, training, held_out, validation_batches, unigram_entropy(shards.training.ids))


def build_model(config: PretrainConfig, tokenizer: Tokenizer) -> tuple[Albert, range]:
    """The model before the first step, and the positions that it had not been trained on."""
    torch.manual_seed(config.seed)
    trained_length = 0
    if config.model is None:
        model_config = _model_config(config, tokenizer)
        albert = Albert(model_config, pretraining_heads(model_config))
    else:
        albert, trained_length = _pretrained(config.model, tokenizer)
    limit = albert.config.max_position_embeddings
    if config.length > limit:
        raise ConfigError(f"length={config.length} is over the model's {limit}; use {limit} or less")
    extended = trained_length > 0 and grow_positions(albert.encoder, trained_length, config.length)
    return albert, range(trained_length, config.length) if extended else range(0)


def compile_model(albert: Albert, objective: PretrainingObjective, precision: str, device: torch.device) -> None:
    """torch.compile for what the fused kernels do not compute."""
    albert.encoder.backend = AutoBackend(eager=EagerBackend(torch.compile(run_block, dynamic=True)))
    if precision == "fp32" or not has_triton(device):
        objective.score = torch.compile(objective.score, dynamic=True)


def fitted_strategies(config: PretrainConfig, model_config: AlbertConfig) -> Strategies:
    """The strategies of the settings, for this model."""
    strategies = Strategies(**{field.name: getattr(config, field.name) for field in fields(Strategies)})
    if strategies.bounds == "view" and model_config.sharing != "none":
        raise ConfigError(
            "bounds=view shows every pass of a shared layer another weight, which no saved ALBERT can express; "
            "use --bounds project, or --sharing none"
        )
    return strategies_for_model(strategies, model_config.num_hidden_layers, model_config.initializer_range)


def build_optimizer(config: PretrainConfig, albert: Albert, strategies: Strategies) -> torch.optim.Optimizer:
    depths = {f"encoder.{name}": users for name, users in albert.encoder.depths_of().items()}
    optimizer = OPTIMIZERS[config.optimizer](
        albert,
        weight_decay=config.weight_decay,
        betas=(0.9, 0.98),
        parameter_options=parameter_options(strategies, albert, depths),
    )
    optimizer.register_step_post_hook(project)
    return optimizer


def unmaskable_tokens(names: Sequence[str], tokenizer: Tokenizer) -> np.ndarray | None:
    """(V,) True for tokens that are never masked: punctuation, and the words of the named files."""
    if not names:
        return None
    absent = [name for name in names if name != "punctuation" and not Path(name).is_file()]
    if absent:
        raise ConfigError(f"mask_exclude={absent[0]}: neither `punctuation` nor a file with one word per line")
    words = {line.strip() for name in names if name != "punctuation" for line in read_lines([Path(name)])}
    encoded = {tuple(encoding.ids[1:-1]) for encoding in tokenizer.encode(sorted(words))} if words else set()
    single = {ids[0] for ids in encoded if len(ids) == 1}
    tokens = [token.strip("▁#") for token in tokenizer.vocabulary()]
    if "punctuation" in names:
        single |= {number for number, token in enumerate(tokens) if token and _is_punctuation(token)}
    return np.array([number in single for number in range(len(tokens))])


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(character)[0] in "PS" for character in token)


def _shares_one_layer(config: AlbertConfig) -> bool:
    return config.sharing == "all" and config.num_hidden_groups == 1


def _refuse_with_partial_depth(config: PretrainConfig) -> None:
    """Settings that are impossible while some unshared layers are not trained yet."""
    refused = {
        "--model": config.model is not None,  # its upper layers would be overwritten by copies of the lower ones
        "--parallel fsdp": config.parallel == "fsdp",
        "--layer-decay-rate": config.layer_decay_rate != 1,
        "--depth-factors": bool(config.depth_factors),
        "--unfreeze-steps": config.unfreeze_steps > 0,
    }
    if any(refused.values()):
        names = ", ".join(name for name, is_set in refused.items() if is_set)
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


def _model_config(config: PretrainConfig, tokenizer: Tokenizer) -> AlbertConfig:
    changes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    changes |= {"sharing": config.sharing, "relative_attention_distance": config.attention_distance}
    changes |= {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.dropout}
    for name, value in (("num_hidden_layers", config.layers), ("embedding_size", config.embedding_size)):
        if value is not None:
            changes[name] = value
    if config.hidden_size is not None:
        most_heads = max(1, config.hidden_size // 64)
        heads = next(number for number in range(most_heads, 0, -1) if config.hidden_size % number == 0)
        changes |= {"hidden_size": config.hidden_size, "num_attention_heads": heads}
        changes["intermediate_size"] = 4 * config.hidden_size
    return preset(config.preset, **changes)


def _pretrained(name: str, tokenizer: Tokenizer) -> tuple[Albert, int]:
    """A trained model with both pre-training heads and the shards' vocabulary, its own or an extension of it, and the
    length of the sequences it was trained on."""
    model = load_trainable(name)
    own, new = model.tokenizer.vocabulary(), tokenizer.vocabulary()
    if new[: len(own)] != own:
        at = next(number for number, token in enumerate(own) if number >= len(new) or new[number] != token)
        raise ConfigError(
            f"{name}: its vocabulary is not the shards' (they differ from token {at} on); prepare the text with "
            f"--tokenizer {name}, or with an extension of it (litebert tokenizer --import-from {name} --add words.txt)"
        )
    heads: dict[str, nn.Module] = pretraining_heads(model.config)
    albert = Albert(model.config, heads | {name: head for name, head in model.albert.heads.items() if name in heads})
    albert.encoder = model.encoder
    return albert if len(own) == len(new) else grow_vocabulary(albert, len(new)), model.max_length
