"""The state of a server: its models, its batcher and what clients store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.numpy
from safetensors import SafetensorError

from litebert.errors import CheckpointError
from litebert.fewshot import Adapted
from litebert.fewshot.persistence import SavedClassifier
from litebert.files import read_json, write_json
from litebert.serve.client_store import FolderStore, MemoryStore, Serializer, Store, TextList
from litebert.serve.engine import Engine
from litebert.serve.limits import ApiError, Limits
from litebert.serve.registry import Registry, ServedModel, base_model
from litebert.serve.runs import TrainingRuns
from litebert.serve.teaching import FewShotTrainer

ADAPTED_PREFIX = "adapted-"
T = TypeVar("T")


@dataclass(frozen=True)
class AdaptedClassifier:
    """A classifier that a client adapted, and the name of its base model."""

    base: str
    adapted: Adapted


class ClassifierSerializer:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def write(self, value: AdaptedClassifier, folder: Path) -> None:
        value.adapted.save(folder)
        write_json(folder / "served.json", {"base": value.base})

    def read(self, folder: Path) -> AdaptedClassifier:
        base = str(read_json(folder / "served.json").get("base"))
        return AdaptedClassifier(base, SavedClassifier.read(folder).restore(base_model(self._registry.get(base).model)))


class TextListSerializer:
    def write(self, value: TextList, folder: Path) -> None:
        write_json(folder / "texts.json", {"model": value.model, "texts": value.texts})
        safetensors.numpy.save_file({"vectors": value.vectors}, folder / "vectors.safetensors")

    def read(self, folder: Path) -> TextList:
        content: dict[str, Any] = read_json(folder / "texts.json")
        try:
            vectors = safetensors.numpy.load_file(folder / "vectors.safetensors")["vectors"]
            return TextList(content["model"], content["texts"], vectors)
        except (SafetensorError, KeyError) as error:
            raise CheckpointError(f"{folder}: is damaged ({error}); upload the list again") from error


class Service:
    def __init__(
        self, registry: Registry, limits: Limits, runs: Path | None = None, state_dir: Path | None = None,
        processes: int = 1,
    ) -> None:  # fmt: skip
        self.registry, self.limits, self.runs = registry, limits, TrainingRuns(runs)
        self.engine = Engine(limits)
        self.trainer = FewShotTrainer(self.engine)
        self._is_stateless = processes > 1 and state_dir is None
        self.classifiers = self._store("classifiers", state_dir, "adapted", ClassifierSerializer(registry))
        self.text_lists = self._store("lists to search", state_dir, "lists", TextListSerializer())

    def _store(self, kind: str, state_dir: Path | None, name: str, serializer: Serializer[T]) -> Store[T]:
        if state_dir is None:
            return MemoryStore(kind, self.limits)
        return FolderStore(kind, self.limits, state_dir / name, serializer)

    def check_keeps_state(self) -> None:
        """Refuse to store what another worker would not find."""
        if self._is_stateless:
            raise ApiError(
                403, "this server has several workers without shared state; to adapt and to search, start it with "
                "--state-dir DIR or --workers 1", "forbidden",
            )  # fmt: skip

    async def find(self, name: str) -> ServedModel:
        """A served model, or a classifier that a client adapted."""
        if not name.startswith(ADAPTED_PREFIX):
            return self.registry.get(name)
        adapted_id = name.removeprefix(ADAPTED_PREFIX)
        classifier = await self.engine.run_in_thread(self.classifiers.get, adapted_id)
        return ServedModel(name, classifier.adapted, adapted_id=adapted_id)

    async def close(self) -> None:
        await asyncio.to_thread(self.trainer.close)  # not on the event loop: its threads wait for it
        await self.engine.close()
