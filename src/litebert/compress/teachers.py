"""Teachers from other libraries.

BERTs run on litebert's encoder (`interop/bert.py`), other encoders on transformers, behind the interface of a Model.
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
from litebert.interop.bert import load_bert, max_text_length, read_other_config
from litebert.interop.huggingface import BERT_TYPES, finetuned_task
from litebert.interop.sentence_transformers import read_sentence_map
from litebert.model import Albert, AlbertConfig
from litebert.model.backends import Backend
from litebert.tasks import Task
from litebert.tasks.base import Scores
from litebert.tasks.text import TextTask
from litebert.tokenizer import Tokenizer

MAX_LENGTH = 512
"""Maximum tokens of a text, for encoders that run on transformers."""
ALBERT_TYPES = (None, "albert", "litebert")


def load_bert_teacher(path: Path) -> Model:
    """A BERT, as an ALBERT without parameter sharing."""
    folder = load_bert(path)
    model = Model(folder.model, folder.tokenizer, folder.task, folder.max_length, folder.sentence_map)
    model.source = path.resolve()
    model.encoder.project.requires_grad_(False)  # an identity, which no BERT has
    return model


def load_other_teacher(path: Path) -> Model | None:
    """The model of another library's folder; None for an ALBERT's folder, or if there is none."""
    if not (path / "config.json").is_file():
        return None
    settings = read_other_config(path)
    kind = settings.get("model_type")
    if kind in ALBERT_TYPES:
        return None
    bends_otherwise = kind == "distilbert" and isinstance(finetuned_task(settings), TextTask)
    return (
        load_bert_teacher(path) if kind in BERT_TYPES and not bends_otherwise else TransformersTeacher(path, settings)
    )


class TransformersTeacher(Model):
    """An encoder that runs on transformers: it embeds, and predicts classes or numbers if it was fine-tuned."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        transformers = require_extra("transformers", "peers")
        task = finetuned_task(settings)
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
        positions = getattr(theirs, "max_position_embeddings", 0) or MAX_LENGTH + 2
        shape = AlbertConfig(
            vocab_size=theirs.vocab_size, hidden_size=theirs.hidden_size, num_attention_heads=1,
            num_hidden_layers=theirs.num_hidden_layers, max_position_embeddings=min(MAX_LENGTH, positions - 2),
        )  # fmt: skip
        length = max_text_length(path, shape.max_position_embeddings)
        super().__init__(_AlbertAdapter(network, shape), tokenizer, task, length)
        self.sentence_map = read_sentence_map(path, theirs.hidden_size, tokenizer)
        self.source = path.resolve()

    @property
    def device(self) -> torch.device:
        return next(self.albert.parameters()).device

    def batch_scores(self, task: Task[Any, Any], batch: Batch) -> Scores:
        network: Any = self.albert
        inputs = network.encoder.inputs(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return {"scores": network.encoder.network(**inputs).logits}


class _AlbertAdapter(Albert):
    """The interface of `Albert` around a transformers model."""

    def __init__(self, network: Any, config: AlbertConfig) -> None:
        nn.Module.__init__(self)
        self.config, self.heads = config, nn.ModuleDict()
        self.encoder = _EncoderAdapter(network, config.num_hidden_layers)  # type: ignore[assignment]


class _EncoderAdapter(nn.Module):
    """The interface of `Encoder` around a transformers model."""

    def __init__(self, network: Any, passes: int) -> None:
        super().__init__()
        self.network, self.passes, self.depth, self.backend = network.eval(), passes, None, Backend()
        takes = inspect.signature(network.forward).parameters
        self._segments = "token_type_ids" in takes and getattr(network.config, "type_vocab_size", 0) > 1

    def checked_depth(self, depth: int | None) -> int:
        return self.passes

    def inputs(self, input_ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> dict[str, Tensor]:
        mask = torch.ones_like(input_ids) if mask is None else mask.long()
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        return inputs | ({"token_type_ids": segments} if self._segments and segments is not None else {})

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **_: Any
    ) -> Tensor:  # (S, L, H)
        inputs = self.inputs(input_ids, attention_mask, token_type_ids)
        states: Tensor = self.network.base_model(**inputs).last_hidden_state
        return states * inputs["attention_mask"][..., None]
