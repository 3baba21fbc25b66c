"""One file per task."""

from litebert.tasks.base import Task, TrainableTask
from litebert.tasks.classify import Classify
from litebert.tasks.mask import Mask

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classify, Mask)}  # type: ignore[type-arg]

__all__ = ["TASKS", "Classify", "Mask", "Task", "TrainableTask"]
