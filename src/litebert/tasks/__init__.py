"""One file per task."""

from litebert.tasks.answer import Answer
from litebert.tasks.base import Task, TrainableTask
from litebert.tasks.choose import Choose
from litebert.tasks.classify import Classify
from litebert.tasks.mask import Mask
from litebert.tasks.multilabel import Multilabel
from litebert.tasks.regress import Regress
from litebert.tasks.tag import Tag

TASKS: dict[str, type[Task]] = {  # type: ignore[type-arg]
    task.name: task for task in (Classify, Multilabel, Regress, Tag, Answer, Choose, Mask)
}

__all__ = ["TASKS", "Answer", "Choose", "Classify", "Mask", "Multilabel", "Regress", "Tag", "Task", "TrainableTask"]
