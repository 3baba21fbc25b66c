"""Masked language modelling: fill masks, measure the masked-token head, score texts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from litebert.data.batches import Batch, Example, collate
from litebert.data.windows import Window, split_into_windows
from litebert.errors import ConfigError, DataError
from litebert.model import Albert, AlbertConfig, MaskedTokenHead
from litebert.tasks.base import Judgement, Scores, Task, hidden_states
from litebert.tokenizer import Encoding, Tokenizer

TOP_K = (1, 5)  # the k of the top-k accuracies
SHARED_WINDOW = 0.5  # of the windows of a long text: every token has half a window of left context

# Scripts without spaces between words, their punctuation, and full-width Latin.
_NO_SPACES = re.compile(
    r"[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class MaskInput:
    """A text with one or more mask tokens, or a text and the tokens to mask."""

    text: str
    hidden: tuple[int, ...] = ()
    """The tokens to mask, counted from 0 for [CLS]; empty if the text has its masks."""
    truth: tuple[str, ...] = ()
    """The right token of each mask, if it is known."""
    where: str = field(default="text", compare=False, repr=False)
    """The file and line it came from, for errors."""
    characters: int = 0
    """The number of masked characters, with the space before a word; 0 = unknown."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A token for one mask."""

    token: str
    probability: float
    text: str
    """The whole text with this mask filled."""


@dataclass(frozen=True, slots=True)
class MaskOutput:
    """The likeliest tokens of each mask, best first, each predicted independently."""

    masks: list[list[Fill]]
    text: str
    """The text with the best token in every mask."""
    log_probability: float
    """The summed log-probability of these tokens."""
    truth_log_probability: float | None = None
    """The summed log-probability of the masked tokens."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A text whose masks were filled iteratively."""

    text: str
    tokens: list[str]
    """The tokens in the masks, in the order of the text."""
    log_probability: float
    """The sum over the masks, each given those that were filled before."""


@dataclass(frozen=True, slots=True)
class Score:
    """The pseudo-log-likelihood of a text."""

    log_probability: float
    """The sum over its tokens."""
    tokens: int
    perplexity: float
    """exp of the negative mean log-probability."""


class Mask(Task[MaskInput, MaskOutput]):
    """The masked-token head of pre-training."""

    name = "mask"
    architecture = "AlbertForMaskedLM"
    head_name = "mlm"
    metric = "top1_accuracy"

    def __init__(self, top: int = max(TOP_K)) -> None:
        self.top = top

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Mask:
        return cls()

    def settings(self) -> dict[str, Any]:
        return {}

    def head(self, config: AlbertConfig) -> nn.Module:
        return MaskedTokenHead(config)

    def parse(self, item: Any, where: str) -> MaskInput:
        text = item.get("text") if isinstance(item, Mapping) else item
        if not isinstance(text, str):
            raise DataError(f"{where}: {str(item)[:40]!r} must be a string, or an object with 'text'")
        return MaskInput(text, where=where)

    def features(self, inputs: Sequence[MaskInput], tokenizer: Tokenizer, max_length: int) -> list[Example]:
        examples = []
        encodings = tokenizer.encode([record.text for record in inputs], max_length=max_length)
        for record, encoding in zip(inputs, encodings, strict=True):
            ids = list(encoding.ids)
            if record.hidden and max(record.hidden) >= len(ids):
                raise DataError(
                    f"{record.where}: token {max(record.hidden)} is to be hidden, and the model reads {len(ids)}; "
                    f"call mask_random_tokens with max_length={max_length}"
                )
            hidden = {column: ids[column] for column in record.hidden}
            for column in hidden:
                ids[column] = tokenizer.mask_id
            is_mask = [number == tokenizer.mask_id for number in ids]
            _check_masks(record, sum(is_mask), tokenizer, max_length)
            # 0 for no mask, else 1 + the masked token, if it is known
            target = [masked * (1 + hidden.get(column, 0)) for column, masked in enumerate(is_mask)]
            examples.append(Example([replace(encoding, ids=ids)], target, tokenizer, per_token=True))
        return examples

    def scores(self, model: Albert, batch: Batch) -> Scores:
        """The likeliest tokens of every mask; the scores of the whole vocabulary stay on the device."""
        assert batch.targets is not None
        targets = batch.targets.flatten()
        rows = (targets > 0).nonzero().squeeze(-1)
        every = _log_probability(model, hidden_states(model.encoder, batch, rows))
        best = every.exp().topk(min(self.top, model.config.vocab_size))
        outputs = {
            "probability": best.values,
            "number": best.indices,
            "truth": every.gather(1, targets[rows, None] - 1),
        }

        def spread(values: Tensor) -> Tensor:  # (masks, n) -> (S, L, n)
            return values.new_zeros(len(targets), values.shape[1]).index_copy(0, rows, values).unflatten(0, shape)

        shape = batch.input_ids.shape
        return {name: spread(values) for name, values in outputs.items()}

    def graph_outputs(self, model: Albert, batch: Batch) -> Scores:
        """The logits of every token: a graph has no list of masks."""
        words = model.encoder.word_embeddings.weight
        return {"logits": model.heads[self.head_name](hidden_states(model.encoder, batch), words)}

    def answer(self, record: MaskInput, example: Example, scores: Scores) -> MaskOutput:
        tokenizer, columns, spans = _mask_positions(example)
        numbers = scores["number"][0, columns].tolist()
        probabilities = scores["probability"][0, columns].tolist()
        masks = [
            [
                Fill(tokenizer.token(number), probability, fill_text(record.text, [span], [number], tokenizer))
                for number, probability in zip(*both, strict=True)
            ]
            for span, *both in zip(spans, numbers, probabilities, strict=True)
        ]
        text = fill_text(record.text, spans, [best for best, *_ in numbers], tokenizer)
        truth = scores["truth"][0, columns].sum().item() if record.hidden else None
        return MaskOutput(masks, text, sum(math.log(best) for best, *_ in probabilities), truth)

    def metrics(self, inputs: Sequence[MaskInput], outputs: Sequence[MaskOutput]) -> dict[str, float]:
        """Top-1 and top-5 accuracy of the masks, and bits per masked character, which is comparable between
        vocabularies."""
        if self.top < max(TOP_K):
            raise ConfigError(f"top={self.top} fillings are too few to measure by; use {max(TOP_K)} or more")
        bare = next((r for r, o in zip(inputs, outputs, strict=True) if len(r.truth) != len(o.masks)), None)
        if bare is not None or not inputs:
            where = "no records" if bare is None else bare.where
            raise DataError(
                f"{where}: every mask needs the token that belongs there; make such records with mask_random_tokens"
            )
        pairs = [
            (token, [fill.token for fill in fills])
            for record, output in zip(inputs, outputs, strict=True)
            for token, fills in zip(record.truth, output.masks, strict=True)
        ]
        ranks = {n: sum(token in candidates[:n] for token, candidates in pairs) for n in TOP_K}
        shares = {f"top{n}_accuracy": count / len(pairs) for n, count in ranks.items()}
        logs = [output.truth_log_probability for output in outputs if output.truth_log_probability is not None]
        characters = [record.characters for record in inputs]
        if len(logs) < len(outputs) or not all(characters):
            return shares
        return shares | {"bits_per_character": -sum(logs) / math.log(2) / sum(characters)}

    def judge(self, record: MaskInput, output: MaskOutput) -> Judgement:
        """The fraction of the masks that are filled right."""
        predicted = [fills[0].token for fills in output.masks]
        right = sum(token == other for token, other in zip(record.truth, predicted, strict=True)) / len(predicted)
        confidence = sum(fills[0].probability for fills in output.masks) / len(predicted)
        return Judgement(record.text, " ".join(record.truth), " ".join(predicted), right, confidence)

    def baseline(self, inputs: Sequence[MaskInput]) -> dict[str, float]:
        """The tokens that are masked most often."""
        counts = Counter(token for record in inputs for token in record.truth)
        return {f"top{n}_accuracy": sum(c for _, c in counts.most_common(n)) / counts.total() for n in TOP_K}


def mask_random_tokens(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, rate: float = 0.15, seed: int = 0
) -> list[MaskInput]:
    """Records with a random share of each text's tokens masked, at least one. Special and unknown tokens are never
    masked; a text without others is left out."""
    if not 0 < rate < 1:
        raise ConfigError(f"rate={rate} must lie between 0 and 1; 0.15 is usual")
    random, specials = np.random.default_rng(seed), _specials(tokenizer)
    has_spaces = not any("▁" in token for token in tokenizer.vocabulary())
    records = []
    for number, encoding in enumerate(tokenizer.encode(texts, max_length=max_length), start=1):
        plain = [column for column, token in enumerate(encoding.ids) if token not in specials]
        if not plain:
            continue
        count = max(1, round(rate * len(plain)))
        columns = sorted(random.choice(plain, count, replace=False).tolist())
        truth = tuple(tokenizer.token(encoding.ids[column]) for column in columns)
        text, starts = texts[number - 1], [encoding.offsets[column][0] for column in columns]
        before = [text[start - 1 : start] if has_spaces and start else "" for start in starts]
        characters = sum(map(_characters, truth, before))
        records.append(MaskInput(text, tuple(columns), truth, f"text {number}", characters))
    return records


def _characters(token: str, before: str) -> int:
    """The characters of a token, with the space before a word: "▁", or nothing in WordPiece."""
    return len(token.removeprefix("##")) + (not token.startswith(("▁", "##")) and before.isspace())


def fill_iteratively(
    model: Albert,
    record: MaskInput,
    example: Example,
    rounds: int | None,
    temperature: float,
    generator: torch.Generator,
) -> Filled:
    """Fill the masks in `rounds` forward passes, by default one per mask; each fills those of the highest probability.
    At temperature 0 the likeliest token is taken, otherwise one is sampled."""
    tokenizer, columns, spans = _mask_positions(example)
    sequence: Any = example.sequences[0]
    device = model.encoder.word_embeddings.weight.device
    ids, chosen, total = list(sequence.ids), dict.fromkeys(columns, -1), 0.0
    for rounds_left in range(min(rounds or len(columns), len(columns)), 0, -1):
        still_open = [column for column in columns if chosen[column] < 0]
        batch = collate([Example([replace(sequence, ids=ids)])], tokenizer.pad_id).to(device)
        with torch.inference_mode():
            rows = torch.tensor(still_open, device=device)
            log_probability = _log_probability(model, hidden_states(model.encoder, batch, rows)).cpu()  # (M, V)
        allowed = log_probability.index_fill(1, torch.tensor(sorted(_specials(tokenizer))), -math.inf)
        allowed[:, tokenizer.vocab_size :] = -math.inf
        surest = allowed.amax(-1).argsort(descending=True, stable=True)[: math.ceil(len(still_open) / rounds_left)]
        for row in surest.tolist():
            number = _sample(allowed[row], temperature, generator)
            chosen[still_open[row]] = ids[still_open[row]] = number
            total += float(log_probability[row, number])
    numbers = list(chosen.values())
    text = fill_text(record.text, spans, numbers, tokenizer)
    return Filled(text, [tokenizer.token(number) for number in numbers], total)


def score_texts(
    model: Albert, tokenizer: Tokenizer, texts: Sequence[str], max_length: int, batch_size: int
) -> list[Score]:
    """Mask every token of every text in turn and sum its log-probability."""
    encoded = [encoding.ids[1:-1] for encoding in tokenizer.encode(texts)]
    for number, (text, ids) in enumerate(zip(texts, encoded, strict=True), start=1):
        if not ids or tokenizer.mask_id in ids:
            mask = tokenizer.specials["mask"]
            raise DataError(f"text {number}: {text[:60]!r} cannot be scored; give text, and fill every {mask} first")
    totals = [0.0] * len(encoded)
    all_positions = _mask_each_token(encoded, tokenizer, max_length)
    while positions := list(islice(all_positions, batch_size)):
        batch = collate([Example([position.sequence]) for position in positions], tokenizer.pad_id)
        batch = batch.to(model.encoder.word_embeddings.weight.device)
        length = batch.input_ids.shape[1]
        columns = [number * length + position.column for number, position in enumerate(positions)]
        rows = torch.tensor(columns).to(batch.lengths)
        with torch.inference_mode():
            log_probability = _log_probability(model, hidden_states(model.encoder, batch, rows))  # (S, V)
            log_probability = log_probability[range(len(positions)), [position.truth for position in positions]]
        for position, value in zip(positions, log_probability.tolist(), strict=True):
            totals[position.text] += value
    lengths = [len(ids) for ids in encoded]
    return [Score(total, n, math.exp(-total / n)) for total, n in zip(totals, lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class _MaskedPosition:
    text: int
    sequence: Window
    column: int
    """Of the mask."""
    truth: int
    """The masked token."""


def _mask_each_token(encoded: Sequence[list[int]], tokenizer: Tokenizer, max_length: int) -> Iterator[_MaskedPosition]:
    """Longest first, so that little is padded; lazily, since a long text has many."""
    for text in sorted(range(len(encoded)), key=lambda text: -len(encoded[text])):
        done = 0
        for window in split_into_windows(encoded[text], None, tokenizer, max_length, overlap=SHARED_WINDOW):
            for column in range(window.column + done - window.start, window.column + window.end - window.start):
                ids = list(window.ids)
                ids[column] = tokenizer.mask_id
                yield _MaskedPosition(text, replace(window, ids=ids), column, window.ids[column])
            done = window.end


def _log_probability(model: Albert, hidden: Tensor) -> Tensor:  # (M, H) -> (M, V)
    return model.heads[Mask.head_name](hidden, model.encoder.word_embeddings.weight).float().log_softmax(-1)


def _sample(scores: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    return int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator))


def _specials(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}


def _check_masks(record: MaskInput, count: int, tokenizer: Tokenizer, max_length: int) -> None:
    mask = tokenizer.specials["mask"]
    if not count:
        raise DataError(
            f"{record.where}: {record.text[:60]!r} has no {mask} in its first {max_length} tokens; "
            f"put {mask} where a word is missing, or use a model trained for another task"
        )
    if record.text.count(mask) > count:
        raise DataError(
            f"{record.where}: {record.text.count(mask) - count} {mask} of {record.text[:60]!r} beyond its first "
            f"{max_length} tokens, which is all the model reads; shorten the text"
        )


def _mask_positions(example: Example) -> tuple[Tokenizer, list[int], list[tuple[int, int]]]:
    """The tokenizer, the columns of the masks, and their characters in the text."""
    encoding = example.sequences[0]
    assert isinstance(encoding, Encoding)
    columns = [column for column, masked in enumerate(example.target) if masked]
    offsets = encoding.offsets
    return example.notes, columns, [offsets[column] for column in columns]


def fill_text(text: str, spans: Sequence[tuple[int, int]], numbers: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text with these tokens in place of the spans."""
    done, at = "", 0
    for (start, end), number in zip(spans, numbers, strict=True):
        done, at = done + text[at:start], end
        token = tokenizer.token(number)
        if token.startswith("▁") or number in tokenizer.added:
            word = token.removeprefix("▁")
            done += joining_space(done, word) + word
        elif token.startswith("##") and len(token) > 2:
            done = done.rstrip(" ") + token[2:]
        elif tokenizer.decode([number, number], skip_special=False) == token * 2:
            done = done.rstrip(" ") + token  # a token that never follows a space
        else:
            done += token
    return done + text[at:]


def joining_space(left: str, right: str) -> str:
    """The space to put between two texts, empty where their scripts have none."""
    if not left or not right or left[-1].isspace() or right[0].isspace():
        return ""
    opens = unicodedata.category(left[-1]) in ("Ps", "Pi")
    return "" if opens or _NO_SPACES.match(left[-1]) or _NO_SPACES.match(right[0]) else " "
