"""Teachers that other libraries made.

BERTs are computed by our own encoder (`interop/bert.py`); other encoders by transformers, behind the face of a Model.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from litebert.data.batches import Batch
from litebert.errors import CheckpointError, ConfigError, require_extra
from litebert.inference import Model
from litebert.interop.bert import load_bert, longest_text, read_foreign
from litebert.interop.huggingface import BERTS, taught_task
from litebert.interop.sentence_transformers import read_map
from litebert.model import Albert, AlbertConfig
from litebert.model.backends import Backend
from litebert.tasks import Task
from litebert.tasks.base import Scores
from litebert.tasks.text import TextTask
from litebert.tokenizer import Tokenizer

LONGEST = 512
"""Tokens of a text, for encoders that transformers computes."""
OURS = (None, "albert", "litebert")


def bert_of(path: Path) -> Model:
    """A BERT, as an ALBERT that shares nothing."""
    folder = load_bert(path)
    model = Model(folder.model, folder.tokenizer, folder.task, folder.max_length, folder.sentence_map)
    model.source = path.resolve()
    model.encoder.project.requires_grad_(False)  # an identity, which no BERT has
    return model


def other_teacher(path: Path) -> Model | None:
    """The model of a folder that is not ours; None if it is, or if there is no folder."""
    if not (path / "config.json").is_file():
        return None
    settings = read_foreign(path)
    kind = settings.get("model_type")
    if kind in OURS:
        return None
    bends_otherwise = kind == "distilbert" and isinstance(taught_task(settings), TextTask)
    return bert_of(path) if kind in BERTS and not bends_otherwise else Foreign(path, settings)


class Foreign(Model):
    """An encoder that transformers computes: it embeds, and answers if it was taught classes or numbers."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        transformers = require_extra("transformers", "peers")
        task = taught_task(settings)
        if task is not None and not isinstance(task, TextTask):
            raise ConfigError(f"{path}: was taught {task.name}, and we learn that from BERTs alone")
        kind = transformers.AutoModel if task is None else transformers.AutoModelForSequenceClassification
        try:
            network = kind.from_pretrained(path, local_files_only=True, trust_remote_code=False, dtype=torch.float32)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            reason = f"{error}".strip().splitlines()[:1]
            raise CheckpointError(
                f"{path}: transformers cannot load it ({' '.join(reason)}); give a folder that it can"
            ) from error
        theirs = network.config
        if theirs.is_encoder_decoder or not hasattr(theirs, "hidden_size"):
            raise CheckpointError(f"{path}: {type(network).__name__} is no encoder of texts alone; give one that is")
        tokenizer = Tokenizer.load(path)
        positions = getattr(theirs, "max_position_embeddings", 0) or LONGEST + 2
        shape = AlbertConfig(
            vocab_size=theirs.vocab_size, hidden_size=theirs.hidden_size, num_attention_heads=1,
            num_hidden_layers=theirs.num_hidden_layers, max_position_embeddings=min(LONGEST, positions - 2),
        )  # fmt: skip
        length = longest_text(path, shape.max_position_embeddings)
        super().__init__(_Network(network, shape), tokenizer, task, length)
        self.sentence_map = read_map(path, theirs.hidden_size, tokenizer)
        self.source = path.resolve()

    @property
    def device(self) -> torch.device:
        return next(self.albert.parameters()).device

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        network: Any = self.albert
        given = network.encoder.inputs(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return {"scores": network.encoder.network(**given).logits}


class _Network(Albert):
    """What stands in an Albert's place."""

    def __init__(self, network: Any, config: AlbertConfig) -> None:
        nn.Module.__init__(self)
        self.config, self.heads = config, nn.ModuleDict()
        self.encoder = _Encoder(network, config.num_hidden_layers)  # type: ignore[assignment]


class _Encoder(nn.Module):
    """What stands in an Encoder's place."""

    def __init__(self, network: Any, passes: int) -> None:
        super().__init__()
        self.network, self.passes, self.depth, self.backend = network.eval(), passes, None, Backend()
        takes = inspect.signature(network.forward).parameters
        self._segments = "token_type_ids" in takes and getattr(network.config, "type_vocab_size", 0) > 1

    def checked_depth(self, depth: int | None) -> int:
        return self.passes

    def inputs(self, input_ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        mask = torch.ones_like(input_ids) if mask is None else mask.long()
        given = {"input_ids": input_ids, "attention_mask": mask}
        return given | ({"token_type_ids": segments} if self._segments and segments is not None else {})

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **_: Any
    ) -> Tensor:  # (S, L, H)
        given = self.inputs(input_ids, attention_mask, token_type_ids)
        states: Tensor = self.network.base_model(**given).last_hidden_state
        return states * given["attention_mask"][..., None]
