"""The models that a server answers with, by name."""

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
"""Of tasks that have one beside /predict."""
ENCODER_ENDPOINTS = ("/v1/embeddings", "/v1/rerank", "/similarity", "/search", "/adapt", "/inside")
ADAPTED_ENDPOINTS = ("examples", "explain", "download")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under its name."""

    name: str
    model: Model
    created: int = field(default_factory=lambda: int(time.time()))
    taught_id: str | None = None
    """Of one that a client taught, which makes no vectors and cannot be taught from."""

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
        if self.taught_id is None:
            return [*own, *ENCODER_ENDPOINTS]
        return [*own, "/inside", *(f"/adapt/{self.taught_id}/{what}" for what in ADAPTED_ENDPOINTS)]

    def record(self) -> dict[str, Any]:
        """As /v1/models says it: OpenAI's fields and ours."""
        return {
            "id": self.name, "object": "model", "created": self.created, "owned_by": "litebert", "task": self.task,
            "labels": self.labels, "max_length": self.model.max_length, "passes": self.model.passes,
            "dimensions": self.model.dimensions, "int8": self.model.answers_in_int8,
            "adapted": isinstance(self.model, Adapted), "endpoints": self.endpoints,
        }  # fmt: skip


class Registry:
    """In the order in which they were given: where a request names none, the first that can answers."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = {one.name: one for one in served}

    @classmethod
    def load(cls, models: Sequence[str], engine: Engine = "auto") -> Registry:
        """Each a folder, a name, or NAME=FOLDER."""
        found: dict[str, ServedModel] = {}
        for given in models:
            name, path = parse_model_argument(given)
            if name in found:
                raise ConfigError(f"{given}: there is a model {name!r} already; give this one a name: NAME={path}")
            _check_weights(name, builtin.folder_of(path))
            model = load_any(path, engine, [base_model(one.model) for one in found.values()])
            model.albert.requires_grad_(False)
            model.tokenizer.warns = False  # logs quote no texts
            if isinstance(model, Adapted) and isinstance(home := model.base.source, Path):
                _check_weights(name, home)
            found[name] = ServedModel(name, model)
        return cls(list(found.values()))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def get(self, name: str) -> ServedModel:
        if name not in self._served:
            there = ", ".join(self._served)
            raise ApiError(
                404, f"model={name[:100]!r} is not served here; there are: {there}", "model_not_found", "model"
            )
        return self._served[name]

    def for_task(self, name: str | None, wanted: str, tasks: Sequence[str]) -> ServedModel:
        """The model of this name, or the first that does what is wanted."""
        if name is not None:
            served = self.get(name)
            if served.task not in tasks:
                raise ApiError(
                    400, f"model={name!r} does {served.task or 'no task'} and cannot {wanted}; see /v1/models",
                    param="model",
                )  # fmt: skip
            return served
        for served in self:
            if served.task in tasks:
                return served
        raise ApiError(
            404, f"no model here can {wanted}; serve one that was taught to, with: litebert serve FOLDER",
            "model_not_found", "model",
        )  # fmt: skip

    def for_masks(self, name: str | None) -> ServedModel:
        """One with a masked-token head."""
        if name is not None and Mask.head_name not in self.get(name).model.albert.heads:
            raise ApiError(
                400, f"model={name!r} has no masked-token head (fine-tuning drops it); name a pre-trained one",
                param="model",
            )  # fmt: skip
        return self.for_task(name, "fill masks", (Mask.name,))

    def for_vectors(self, name: str | None) -> ServedModel:
        """All have an encoder; by default one that was taught similarity, else one that was not taught a task."""
        if name is not None:
            return self.get(name)
        all_of_them = list(self)
        for wanted in ((Similarity.name,), (None, Mask.name)):
            if suitable := [served for served in all_of_them if served.task in wanted]:
                return suitable[0]
        return all_of_them[0]


def _check_weights(name: str, folder: Path) -> None:
    """That they are what was saved; where nothing says so, the log does."""
    check_hashes(folder)
    is_ours = folder in builtin.FOLDERS.values()  # pip has checked those
    if (unknown := unhashed_weights(folder)) and not is_ours:
        remedy = f"no {HASH_FILE} beside them says what they were; load the model and save it again"
        LOG.warning("unchecked weights", extra={"fields": {"model": name, "files": unknown, "remedy": remedy}})


def parse_model_argument(given: str) -> tuple[str, str]:
    """The name under which a model is served, and where it is."""
    name, equals, path = given.partition("=")
    if equals and MODEL_NAME.fullmatch(name) and not Path(given).exists():
        return name, path
    name = re.sub(r"[^\w.-]+", "-", Path(given).resolve().name if Path(given).exists() else given.split("/")[-1])
    name = name.strip(".-") or "model"
    return name[:100], given


def base_model(model: Model) -> Model:
    """What an adapted model was made from; another is it itself."""
    return model.base if isinstance(model, Adapted) else model
