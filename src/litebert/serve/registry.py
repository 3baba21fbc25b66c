"""The models that a server serves, by name."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litebert import builtin
from litebert.errors import ConfigError
from litebert.fewshot import Adapted
from litebert.fewshot.persistence import load_any
from litebert.files import HASH_FILE, check_hashes, unhashed_weights
from litebert.inference import Model
from litebert.inference.loading import Engine
from litebert.serve.limits import ApiError
from litebert.tasks import Mask, Similarity

LOG = logging.getLogger("litebert.serve")
MODEL_NAME = re.compile(r"[\w][\w.-]{0,99}")
TASK_ENDPOINTS = {
    "classify": "/classify", "few-shot": "/classify", "multilabel": "/classify", "regress": "/classify", "tag": "/tag",
    "answer": "/answer", "translate": "/translate", "mask": "/fill-mask",
}  # fmt: skip
"""Endpoints of tasks that have one besides /predict."""
ENCODER_ENDPOINTS = ("/v1/embeddings", "/v1/rerank", "/similarity", "/search", "/adapt", "/inside")
ADAPTED_ENDPOINTS = ("examples", "explain", "download")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model and the name under which it is served."""

    name: str
    model: Model
    created: int = field(default_factory=lambda: int(time.time()))
    adapted_id: str | None = None
    """Set for a classifier that a client adapted; it gives no embeddings and cannot be adapted further."""

    @property
    def task(self) -> str | None:
        return None if self.model.task is None else self.model.task.name

    @property
    def labels(self) -> list[str]:
        task: Any = self.model.task
        return list(getattr(task, "labels", getattr(task, "tags", [])))

    @property
    def endpoints(self) -> list[str]:
        own = [f"/predict/{self.name}"] if self.task else []
        own += [TASK_ENDPOINTS[self.task]] if self.task in TASK_ENDPOINTS else []
        if self.adapted_id is None:
            return [*own, *ENCODER_ENDPOINTS]
        return [*own, "/inside", *(f"/adapt/{self.adapted_id}/{action}" for action in ADAPTED_ENDPOINTS)]

    def record(self) -> dict[str, Any]:
        """The entry of /v1/models: OpenAI's fields and ours."""
        return {
            "id": self.name, "object": "model", "created": self.created, "owned_by": "litebert", "task": self.task,
            "labels": self.labels, "max_length": self.model.max_length, "passes": self.model.passes,
            "dimensions": self.model.dimensions, "int8": self.model.answers_in_int8,
            "adapted": isinstance(self.model, Adapted), "endpoints": self.endpoints,
        }  # fmt: skip


class Registry:
    """Served models in the order given: a request that names none gets the first that can answer it."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = {model.name: model for model in served}

    @classmethod
    def load(cls, models: Sequence[str], engine: Engine = "auto") -> Registry:
        """Load models, each given as a folder, a model name, or NAME=FOLDER."""
        loaded: dict[str, ServedModel] = {}
        for argument in models:
            name, path = parse_model_argument(argument)
            if name in loaded:
                raise ConfigError(f"{argument}: the name {name!r} is taken; choose another: NAME={path}")
            _check_weights(name, builtin.folder_of(path))
            model = load_any(path, engine, [base_model(served.model) for served in loaded.values()])
            model.albert.requires_grad_(False)
            model.tokenizer.warn_unknown = False  # the warning would quote texts in the log
            if isinstance(model, Adapted) and isinstance(home := model.base.source, Path):
                _check_weights(name, home)
            loaded[name] = ServedModel(name, model)
        return cls(list(loaded.values()))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def get(self, name: str) -> ServedModel:
        if name not in self._served:
            available = ", ".join(self._served)
            raise ApiError(
                404, f"model={name[:100]!r} is not served here; available: {available}", "model_not_found", "model"
            )
        return self._served[name]

    def for_task(self, name: str | None, action: str, tasks: Sequence[str]) -> ServedModel:
        """The model of this name, or the first with one of these tasks."""
        if name is not None:
            served = self.get(name)
            if served.task not in tasks:
                raise ApiError(
                    400, f"model={name!r} does {served.task or 'no task'} and cannot {action}; see /v1/models",
                    param="model",
                )  # fmt: skip
            return served
        for served in self:
            if served.task in tasks:
                return served
        raise ApiError(
            404, f"no model here can {action}; serve one that can, with: litebert serve FOLDER",
            "model_not_found", "model",
        )  # fmt: skip

    def for_masks(self, name: str | None) -> ServedModel:
        """A model with a masked-token head."""
        if name is not None and Mask.head_name not in self.get(name).model.albert.heads:
            raise ApiError(
                400, f"model={name!r} has no masked-token head (fine-tuning drops it); name a pre-trained one",
                param="model",
            )  # fmt: skip
        return self.for_task(name, "fill masks", (Mask.name,))

    def for_embeddings(self, name: str | None) -> ServedModel:
        """The model of this name; by default one trained for similarity, else one without a task, else the first."""
        if name is not None:
            return self.get(name)
        models = list(self)
        for preferred in ((Similarity.name,), (None, Mask.name)):
            for served in models:
                if served.task in preferred:
                    return served
        return models[0]


def _check_weights(name: str, folder: Path) -> None:
    """Compare the weights with their recorded hashes; log a warning where there are none."""
    check_hashes(folder)
    is_builtin = folder in builtin.FOLDERS.values()  # pip has checked those
    if (unchecked := unhashed_weights(folder)) and not is_builtin:
        remedy = f"{HASH_FILE} lists no hash of them; load the model and save it again"
        LOG.warning("unchecked weights", extra={"fields": {"model": name, "files": unchecked, "remedy": remedy}})


def parse_model_argument(argument: str) -> tuple[str, str]:
    """The name under which a model is served, and its folder or model name."""
    name, equals, path = argument.partition("=")
    if equals and MODEL_NAME.fullmatch(name) and not Path(argument).exists():
        return name, path
    name = re.sub(
        r"[^\w.-]+", "-", Path(argument).resolve().name if Path(argument).exists() else argument.split("/")[-1]
    )
    name = name.strip(".-") or "model"
    return name[:100], argument


def base_model(model: Model) -> Model:
    """The model that an adapted model is based on; any other model is its own base."""
    return model.base if isinstance(model, Adapted) else model
