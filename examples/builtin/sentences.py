"""Teach a pre-trained model, without labels, vectors of sentences that tell meanings apart.

  python examples/builtin/sentences.py --data shards --sts tasks/glue/STS-B --out runs/sentences

All weights learn. Every sentence of a batch has to find the one that follows it among the others, both read with some
tokens dropped. The pairs come from the shards that the model was trained on. The layer is shared, so the model may be
read after fewer passes: what is learned is faster too. How the vectors are made of it in the end (of which passes,
whitened or not and how much) is decided by STS-B's training pairs, and the sentences of those pairs, or these and some
of the shards, say how vectors vary; its development pairs are asked at the end, its test pairs never. Prints what it
finds, and writes it to result.json in --out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from embeddings import LONGEST, SHORTEST, counts_of
from scipy.stats import spearmanr
from torch import Tensor

import litebert
from litebert.builtin import DEFAULT
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, Shards
from litebert.device import has_bfloat16, pick_device
from litebert.inference import Model
from litebert.model import Albert
from litebert.model.sentence_head import SentenceHead, SentenceMap, unit
from litebert.tasks import Similarity
from litebert.tasks.similarity_files import SimilarInput
from litebert.tokenizer import Tokenizer
from litebert.train.optimizers import adamw

WARMUP = 0.1
DROPPED = 0.2
"""Of the tokens, at every reading."""
TEMPERATURE = 0.05
LOOKED_AT = 4096
"""Sentences that say how vectors vary, before and after."""
POWERS = (0.0, 0.15, 0.25, 0.35)
"""Of the covariance, by which vectors are whitened; 1/2 would make all directions alike, 0 changes nothing."""
LAST_PASSES = (1, 2, 3)
"""After so many the states are looked at, for what is pooled in the end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--data", type=Path, required=True, help="what litebert prepare wrote")
    parser.add_argument("--sts", type=Path, required=True, help="a folder with train.tsv and dev.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024, help="pairs")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end sooner, the rate falling by the clock")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--looks", type=int, default=3, help="at the training pairs, on the way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", action="store_true", help="save weights in bfloat16")
    options = parser.parse_args()
    began = time.perf_counter()
    model = shallower(litebert.load(options.model), options.passes).to(pick_device("auto"))
    model.bf16 = has_bfloat16(model.device)
    pool = Pool.of(Shards(options.data))
    if not len(pool.near):
        parser.error(f"{options.data}: no two sentences of {SHORTEST} to {LONGEST} tokens follow each other")
    pairs = {part: Similarity.read(options.sts / f"{part}.tsv") for part in ("train", "dev")}
    texts = some_of(pool, model.tokenizer, LOOKED_AT)
    tokens = counts_of(model, texts)["rare tokens first"]
    first = replace(SentenceMap.plain(model.config.hidden_size), tokens=None if (tokens == 1).all() else tokens)
    model.sentence_map = begun(model, first, texts)  # so that no direction stands out at the start
    found = {"before": correlation(model, pairs["train"])}
    print(
        f"{time.perf_counter() - began:.0f} s: begins; Spearman {found['before']:.4f} on the training pairs", flush=True
    )
    found |= learn(model, pool, pairs["train"], options)
    found |= settled(model, texts, pairs["train"])
    found |= {"dev": correlation(model, pairs["dev"]), "seconds": time.perf_counter() - began}
    Model(model.to("cpu").albert, model.tokenizer, None, model.max_length).save(options.out, half=options.half)
    told = {name: str(value) for name, value in vars(options).items()}
    (options.out / "result.json").write_text(json.dumps({"options": told, "found": found}, indent=1) + "\n")
    told = {name: f"{value:.4f}" for name, value in found.items() if not name[0].isdigit() or value == found["train"]}
    print(", ".join(f"{name} {value}" for name, value in told.items()), flush=True)


def shallower(model: Model, passes: int) -> Model:
    """The same weights, read after fewer passes or more, with its own tokenizer and without its other heads."""
    with torch.random.fork_rng([]):
        albert = Albert(replace(model.config, num_hidden_layers=passes), {})
    albert.encoder.load_state_dict(model.encoder.state_dict())
    return Model(albert, model.tokenizer, None, model.max_length)


def begun(model: Model, first: SentenceMap, texts: list[str]) -> SentenceMap:
    """`first`, and after it a map by which strong directions of what it makes of the texts become less so.

    What all vectors have in common is such a direction too. Where it is subtracted instead, as is usual, texts that are
    unlike these suffer: the mean of Wikipedia's sentences, subtracted from means of words, costs STS-B 7 points.
    """
    model.sentence_map = first
    (change,) = whitenings(torch.from_numpy(model.embed(texts)).double(), (0.25,)).values()
    whole, bias = change.numpy() @ first.weight, change.numpy() @ first.bias
    return replace(first, weight=whole.astype(np.float32), bias=bias.astype(np.float32))


def whitenings(vectors: Tensor, powers: Sequence[float]) -> dict[float, Tensor]:  # (S, H), of (H, H)
    """For each power, what vectors are multiplied with; their mean length stays."""
    spread, directions = torch.linalg.eigh(vectors.T @ vectors / len(vectors))
    found = {}
    for power in powers:
        change = directions * spread.clamp(min=1e-6 * spread.max()) ** -power @ directions.T
        found[power] = change * (vectors.norm(dim=1).mean() / (vectors @ change).norm(dim=1).mean())
    return found


def settled(model: Model, texts: list[str], pairs: list[SimilarInput]) -> dict[str, float]:
    """Make vectors the way that these pairs like best, and say what each way is worth to them."""
    made, device, found, best = model.sentence_map, model.device, dict[str, float](), -1.0
    assert made is not None
    own, labels = [text for pair in pairs for text in pair.texts], [pair.label for pair in pairs]
    taken = made
    for passes in [count for count in LAST_PASSES if count <= model.config.num_hidden_layers]:
        none = replace(SentenceMap.plain(model.config.hidden_size), tokens=made.tokens, passes=passes)
        model.sentence_map = none
        pooled = torch.from_numpy(model.embed([*own, *texts])).to(device)
        for name, first in {"mapped": replace(made, passes=passes), "no map": none}.items():
            weight, bias = (torch.from_numpy(one).to(device) for one in (first.weight, first.bias))
            vectors = F.linear(pooled, weight, bias).double()
            for which, some in {"own": vectors[: len(own)], "all": vectors}.items():
                for power, change in whitenings(some, POWERS).items():
                    left, right = F.normalize(vectors[: len(own)] @ change, dim=1).view(len(pairs), 2, -1).unbind(1)
                    value = float(spearmanr((left * right).sum(1).cpu().numpy(), labels)[0])
                    found[f"{passes} {name}, {which} {power}"] = value
                    if value > best:
                        whole = [(change.float() @ one).cpu().numpy() for one in (weight, bias)]
                        best, taken = value, replace(first, weight=whole[0], bias=whole[1])
    model.sentence_map = taken
    return found | {"train": best}


@dataclass(frozen=True)
class Pool:
    """Sentences laid end to end."""

    ids: np.ndarray
    """(T,)"""
    starts: np.ndarray
    """(N + 1,) of sentences, and T."""
    alone: np.ndarray
    """Sentences that are neither too short nor too long."""
    near: np.ndarray
    """Those of them whose next one is such a sentence too, in the same document."""

    @classmethod
    def of(cls, shards: Shards) -> Pool:
        stream = shards.training
        ids, bits = np.concatenate(stream.ids), np.concatenate(stream.bits)
        starts = np.append(np.flatnonzero(bits & SENTENCE_START), len(ids))
        sizes = np.diff(starts)
        fits = (sizes >= SHORTEST) & (sizes <= LONGEST)
        follows = (bits[starts[1:-1]] & DOCUMENT_START) == 0
        return cls(ids, starts, np.flatnonzero(fits), np.flatnonzero(fits[:-1] & fits[1:] & follows))

    def pairs(self, count: int, chance: np.random.Generator) -> np.ndarray:
        """(2, count, 2) where the two sentences of each pair begin and end."""
        first = chance.choice(self.near, count)
        return np.stack([np.stack([self.starts[some], self.starts[some + 1]], 1) for some in (first, first + 1)])


def some_of(pool: Pool, tokenizer: Tokenizer, count: int) -> list[str]:
    which = np.random.default_rng(0).choice(pool.alone, min(count, len(pool.alone)), replace=False)
    return [tokenizer.decode(pool.ids[pool.starts[one] : pool.starts[one + 1]].tolist()) for one in which]


@dataclass(frozen=True)
class Reader:
    """Pairs for every step, as the model reads them: sequences end to end."""

    pool: Pool
    tokenizer: Tokenizer
    batch_size: int
    seed: int

    def batch(self, step: int) -> tuple[Tensor, Tensor, int]:
        """(T,) ids, (2 * B,) lengths, and the longest: first all left texts, then all right ones."""
        chance = np.random.default_rng([self.seed, step])
        sides = [self._ids(places, chance) for places in self.pool.pairs(self.batch_size, chance)]
        ids, sizes = (np.concatenate(parts) for parts in zip(*sides, strict=True))
        ends = np.cumsum(sizes + 2)
        found = np.empty(ends[-1], np.int64)
        inner = np.ones(len(found), bool)
        found[ends - 1], found[ends - sizes - 2] = self.tokenizer.sep_id, self.tokenizer.cls_id
        inner[ends - 1] = inner[ends - sizes - 2] = False
        found[inner] = ids
        return torch.from_numpy(found), torch.from_numpy(sizes + 2), LONGEST + 2

    def _ids(self, places: np.ndarray, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these texts and how many of each, some dropped."""
        sizes = places[:, 1] - places[:, 0]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        first = np.cumsum(sizes) - sizes
        at = np.arange(len(owner)) - first[owner] + places[owner, 0]
        kept = chance.random(len(at)) >= DROPPED
        kept[first] |= np.bincount(owner, kept, len(sizes)) == 0  # something is always left
        return self.pool.ids[at[kept]].astype(np.int64), np.bincount(owner[kept], minlength=len(sizes))


def learn(model: Model, pool: Pool, pairs: list[SimilarInput], options: argparse.Namespace) -> dict[str, float]:
    """Teach it, and look at the training pairs now and then."""
    reader = Reader(pool, model.tokenizer, options.batch_size, options.seed)
    albert, device = model.albert, model.device
    head: SentenceHead = albert.heads[SentenceHead.name].requires_grad_(True)  # type: ignore[assignment]
    optimizer = adamw(albert, weight_decay=0.01)
    own = torch.arange(options.batch_size, device=device)
    began, share, step, found, tokens = time.perf_counter(), 0.0, 0, dict[str, float](), 0
    albert.train()
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min((share + 0.001) / WARMUP, (1 - share) / (1 - WARMUP))
        ids, lengths, longest = reader.batch(step)
        tokens += len(ids)
        ids, lengths = (one.to(device, non_blocking=True) for one in (ids, lengths))
        with torch.autocast(device.type, torch.bfloat16, enabled=model.bf16):
            states = albert.encoder.packed(ids, lengths, longest=longest)  # (T, H)
        left, right = F.normalize(vectors_of_both(head, states, ids, lengths), dim=1).chunk(2)
        alike = left @ right.T / TEMPERATURE  # (B, B)
        loss = (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(albert.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step == 1:  # in which kernels are compiled
            began, tokens = time.perf_counter(), 0
        before, share = share, max(step / options.steps, (time.perf_counter() - began) / options.seconds)
        if int(share * options.looks) > int(before * options.looks):
            name, seconds = f"step {step}", time.perf_counter() - began
            found[name] = correlation(model, pairs)
            albert.train()
            right_ones = (alike.argmax(1) == own).float().mean().item()
            told = f"loss {loss.item():.3f}, {right_ones:.0%} found their own"
            print(f"{name}, {seconds:.0f} s, {tokens / seconds:,.0f} tokens/s: {told}; {found[name]:.4f}", flush=True)
    return found


def vectors_of_both(head: SentenceHead, states: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # (T, H) -> (2 * B, D)
    weights = torch.ones_like(ids, dtype=torch.float32) if head.tokens is None else head.tokens[ids]
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths, output_size=len(ids))
    total = weights.new_zeros(len(lengths), states.shape[1]).index_add(0, owner, states.float() * weights[:, None])
    count = weights.new_zeros(len(lengths)).index_add(0, owner, weights)
    return head.linear(total / count.clamp(min=1e-9)[:, None])


def correlation(model: Model, pairs: list[SimilarInput]) -> float:
    """Between cosines and what people said."""
    vectors = unit(model.embed([text for pair in pairs for text in pair.texts]))
    return float(spearmanr((vectors[::2] * vectors[1::2]).sum(1), [pair.label for pair in pairs])[0])


if __name__ == "__main__":
    main()
