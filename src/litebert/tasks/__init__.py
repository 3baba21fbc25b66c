"""What the model can be trained to do: one file per task."""

from litebert.tasks.answer import Answer
from litebert.tasks.base import Task, TrainableTask
from litebert.tasks.choose import Choose
from litebert.tasks.classify import Classify
from litebert.tasks.mask import Mask
from litebert.tasks.multilabel import Multilabel
from litebert.tasks.regress import Regress
from litebert.tasks.similarity import Similarity
from litebert.tasks.tag import Tag
from litebert.tasks.translate import Translate

TASKS: dict[str, type[Task]] = {  # type: ignore[type-arg]
    task.name: task for task in (Classify, Multilabel, Regress, Tag, Answer, Choose, Similarity, Mask, Translate)
}

__all__ = [
    "TASKS", "Answer", "Choose", "Classify", "Mask", "Multilabel", "Regress", "Similarity", "Tag", "Task",
    "TrainableTask", "Translate",
]  # fmt: skip
