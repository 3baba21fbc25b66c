"""What is asked of every model of `litebert reproduce`, on text and examples that it has not learned from.

Shapes: P pairs, S sequences of L columns, H hidden.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from litebert.commands import finetune
from litebert.data.masking import Masking
from litebert.data.pretraining import PretrainingBatch, PretrainingData, TrainingStage
from litebert.data.segments import SentenceObjective
from litebert.data.shards import Shards, TokenStream
from litebert.data.tables import TableOptions
from litebert.device import has_bfloat16
from litebert.errors import DataError, require_extra
from litebert.fewshot.adapt import adapt_frozen
from litebert.inference import Model
from litebert.studies.reproduce.plan import Plan, TaskFiles
from litebert.tasks import Classify
from litebert.tasks.pretraining import PretrainingObjective
from litebert.trainers.finetuning import finetune as teach

ROWS_AT_ONCE = 64
HELD_OUT_SEED, PROBE_SEED = 1, 2
MASKINGS = {"mlm": Masking("ngram", 0.15), "mlm_token": Masking("token", 0.15)}
"""Hidden in the same way for all models, however they were trained: as the paper does, and single tokens."""
QUESTIONS: dict[str, SentenceObjective] = {"next": "next", "order": "order"}
SETTLING_ROWS = 64
DRAWS = 5
"""Handfuls of examples, the same for all models, over which accuracy is averaged."""
LEAST_TESTED = 2  # per class


class Asked:
    """The questions, the same for all models."""

    def __init__(self, plan: Plan, device: torch.device, console: Console) -> None:
        self.plan, self.device, self.console = plan, device, console
        self.shards = Shards(plan.data)
        self.examples = labelled(plan)

    def __call__(self, model: Model, sentences: SentenceObjective, folder: Path, seed: int) -> dict[str, Any]:
        """What a trained model reaches. `sentences` is the form in which it has read; fine-tunings go to `folder`."""
        model.to(self.device)
        model.encoder.eval()
        found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.albert.parameters())}
        half = has_bfloat16(self.device) and self.plan.fixed["precision"] != "fp32"  # as it was trained
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            for name, masking in MASKINGS.items():
                found |= self._tokens(model, name, self._batches(sentences, masking))
            for name, question in QUESTIONS.items():
                found |= self._pairs(model, name, question, trained=question == sentences)
        with torch.no_grad():
            found |= self._settling(model)
        found["few_shot"] = self._few_shot(model)
        taught = {task.name: self._taught(task, model, folder / task.name, seed) for task in self.plan.tasks}
        found["downstream"] = {name: score for name, (score, _) in taught.items()}
        found["without_reading"] = {name: score for name, (_, score) in taught.items()}
        return found

    def _batches(
        self, sentences: SentenceObjective, masking: Masking, held_out: bool = True, rows: int | None = None
    ) -> Iterator[PretrainingBatch]:
        stream: TokenStream = self.shards.held_out if held_out else self.shards.training
        data = PretrainingData(
            stream, self.shards.tokenizer, [TrainingStage(0, ROWS_AT_ONCE, self.plan.fixed["length"])],
            seed=HELD_OUT_SEED if held_out else PROBE_SEED, masking=masking, sentences=sentences,
        )  # fmt: skip
        for number in range(-(-(rows or self.plan.rows) // ROWS_AT_ONCE)):
            yield data.batch(number).to(self.device)

    def _tokens(self, model: Model, name: str, batches: Iterator[PretrainingBatch]) -> dict[str, float]:
        """How many hidden tokens are found, and how surprising they are."""
        objective = PretrainingObjective(model.albert).eval()
        one, hidden = torch.ones((), device=self.device), 0
        right = loss = 0.0
        for batch in batches:
            sums = objective(batch, model.config.num_hidden_layers, self.plan.fixed["length"], one, one)
            right, loss = right + float(sums["mlm_accuracy"]), loss + float(sums["mlm_loss"])
            hidden += len(batch.labels)
        return {name: right / hidden, f"{name}_loss": loss / hidden}

    def _pairs(self, model: Model, name: str, question: SentenceObjective, trained: bool) -> dict[str, float | None]:
        """How often a probe is right about pairs, and the model's own head if this is what it was trained for."""
        masking = MASKINGS["mlm"]
        seen = self._states(model, self._batches(question, masking, held_out=False, rows=self.plan.pairs))
        asked, truth = self._states(model, self._batches(question, masking))
        own = None
        if trained:
            answers = model.albert.heads["order"](model.encoder.pool(asked)).argmax(-1)
            own = balanced(truth.cpu().numpy(), answers.cpu().numpy())
        return {f"{name}_probe": probed(seen, (asked, truth)), f"{name}_head": own, f"{name}_pairs": len(truth)}

    def _states(self, model: Model, batches: Iterator[PretrainingBatch]) -> tuple[Tensor, Tensor]:
        """The last states of [CLS], (P, H), and which pairs are wrong, (P,)."""
        states, wrong = [], []
        for batch in batches:
            states.append(
                model.encoder.packed(
                    batch.input_ids, batch.lengths, batch.token_type_ids, longest=self.plan.fixed["length"],
                    rows=batch.cls_positions,
                )
            )  # fmt: skip
            wrong.append(batch.swapped)
        answers = torch.cat(wrong)
        if len(answers.unique()) < 2:
            raise DataError(
                f"{self.plan.data}: {len(answers)} pairs of sentences are too few to ask about; raise --rows, or "
                "prepare more text, or longer documents"
            )
        return torch.cat(states).float(), answers

    def _settling(self, model: Model) -> dict[str, Any]:
        """How far every pass moves the states of tokens, and by which angle it turns them."""
        batch = next(self._batches("order", MASKINGS["mlm"], rows=SETTLING_ROWS))
        lengths = [length for length in batch.lengths.tolist() if length]
        ids, types = (
            torch.nn.utils.rnn.pad_sequence(list(tensor.split(lengths)), batch_first=True)
            for tensor in (batch.input_ids, batch.token_type_ids)
        )  # (S, L)
        columns = torch.arange(ids.shape[1], device=self.device)
        real = columns < torch.tensor(lengths, device=self.device)[:, None]
        if batch.padding:
            real[-1] = False
        passes = range(model.config.num_hidden_layers + 1)
        states = [
            state[real].float() for state in model.encoder.hidden_states_at(passes, ids, real, types)
        ]  # (T, H) each
        distances = [float((after - before).norm(dim=-1).mean()) for before, after in pairwise(states)]
        angles = [
            float(
                torch.rad2deg(torch.nn.functional.cosine_similarity(before, after, dim=-1).clamp(-1, 1).acos()).mean()
            )
            for before, after in pairwise(states)
        ]
        return {"distances": distances, "angles": angles, "last_angle": angles[-1]}

    def _few_shot(self, model: Model) -> float:
        """Accuracy of `litebert adapt`, which tunes nothing, over several handfuls of examples."""
        texts, labels = self.examples
        scores = []
        for draw in range(DRAWS):
            chosen = handful(labels, self.plan.shots, draw)
            others = sorted(set(range(len(labels))) - set(chosen))
            adapted = adapt_frozen(model, [texts[i] for i in chosen], [labels[i] for i in chosen])
            answers: list[Any] = adapted.predict([texts[i] for i in others])
            scores.append(float(np.mean([answers[n].label == labels[i] for n, i in enumerate(others)])))
        return float(np.mean(scores))

    def _taught(self, task: TaskFiles, model: Model, out: Path, seed: int) -> tuple[float, float | None]:
        """The score of a fine-tuned model on the test file, and of who always answers the same; the best epoch is
        chosen by a part of the training file."""
        shutil.rmtree(out, ignore_errors=True)  # what was killed begins again
        kind: Any = task.task
        device: Any = self.plan.fixed["device"]
        settings = finetune.Config(
            model=str(model.source), train=task.train, test=task.test, out=out, task=kind, metric=task.metric,
            epochs=self.plan.task_epochs, save_every=f"{self.plan.task_epochs}epoch", seed=seed, device=device,
        )  # fmt: skip
        result = teach(settings, self.console)
        shutil.rmtree(out)
        if result is None:
            raise KeyboardInterrupt
        return result.test[result.metric], result.baseline.get(result.metric)


def labelled(plan: Plan) -> tuple[list[str], list[str]]:
    """Texts and their classes, for handfuls of examples; classes with too few are left out."""
    records = Classify.read(plan.few_shot, TableOptions.parse(plan.columns, True))
    labels = [str(record.label) for record in records]
    kept = [i for i in range(len(records)) if labels.count(labels[i]) >= plan.shots + LEAST_TESTED]
    if len({labels[i] for i in kept}) < 2 or any(records[i].text_b is not None for i in kept):
        raise DataError(
            f"{plan.few_shot}: needs two classes or more of single texts, {plan.shots + LEAST_TESTED} of each; "
            "give another --few-shot file, or fewer --shots"
        )
    return [records[i].text for i in kept], [labels[i] for i in kept]


def handful(labels: Sequence[str], shots: int, draw: int) -> list[int]:
    """Which examples of each class are shown; the same for everybody."""
    rng = random.Random(draw)
    by_class: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        by_class.setdefault(label, []).append(number)
    return [number for label in sorted(by_class) for number in rng.sample(by_class[label], shots)]


def probed(seen: tuple[Tensor, Tensor], asked: tuple[Tensor, Tensor]) -> float:
    """How often logistic regression, learned from the first states, is right about the second; a half is chance."""
    linear = require_extra("sklearn.linear_model", "train")
    centre, spread = seen[0].mean(0), seen[0].std(0).clamp_min(1e-6)
    (states, truth), (others, answers) = (
        (((given - centre) / spread).cpu().numpy(), wrong.cpu().numpy()) for given, wrong in (seen, asked)
    )
    # as many numbers as pairs could be learned by heart: a ridge as long as the vectors holds against that
    probe = linear.LogisticRegression(C=1 / math.sqrt(states.shape[1]), max_iter=300, class_weight="balanced")
    return balanced(answers, probe.fit(states, truth).predict(others))


def balanced(truth: np.ndarray, answers: np.ndarray) -> float:
    """The mean of the shares of right answers about right and about wrong pairs: chance is a half, whatever there is
    more of."""
    return float(np.mean([(answers[truth == kind] == kind).mean() for kind in np.unique(truth)]))
