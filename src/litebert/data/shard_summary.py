"""Summary of a folder of shards: counts, length quantiles and examples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, Shards, TokenStream

MAX_COUNTED_LENGTH = 1 << 16  # tokens; bounds the memory of the quantiles
EXAMPLES, EXAMPLE_TOKENS = 3, 60
SENTENCE_MARK, WORD_MARK = "‖", "|"


def describe_shards(shards: Shards) -> Iterator[str]:
    """The lines of the summary."""
    index = shards.index
    streams = (shards.training, shards.held_out)
    size = sum((shards.folder / name).stat().st_size for name in index.sha256)
    yield f"{shards.folder}: {len(shards.training.ids)} shards, {size / 1e6:,.1f} MB, {index.dtype} ids"
    dropped = f"{index.held_out_documents:,} held out, {index.duplicates:,} duplicates dropped"
    yield f"documents   {index.documents:,} ({dropped})"
    if index.settings.get("excluded"):
        yield f"excluded    {index.excluded:,} lines"
    yield f"sentences   {index.sentences:,}"
    yield f"words       {index.words:,}"
    unknown = f"{index.unknown / index.tokens:.3%} unknown"
    yield f"tokens      {index.tokens:,} ({index.held_out_tokens:,} held out, {unknown})"
    if index.text_bytes:
        yield f"text        {index.text_bytes / 1e6:,.1f} MB, {index.text_bytes / index.tokens:.2f} bytes per token"
    for name, bit in (("document", DOCUMENT_START), ("sentence", SENTENCE_START), ("word", WORD_START)):
        quantiles = _length_quantiles(streams, bit)
        shown = {
            share: f"{length:,}" if length < MAX_COUNTED_LENGTH else f"≥{MAX_COUNTED_LENGTH:,}"
            for share, length in quantiles.items()
        }
        yield f"tokens per {name:<9}" + "  ".join(f"{share:.0%} {length}" for share, length in shown.items())
    if index.settings:
        yield "settings    " + ", ".join(f"{name} {value}" for name, value in index.settings.items())
    yield f"examples    {SENTENCE_MARK} a sentence starts, {WORD_MARK} a word starts"
    yield from _example_documents(shards)


def _length_quantiles(streams: tuple[TokenStream, ...], bit: int) -> dict[float, int]:
    """Quantiles of the lengths between starts marked by a bit."""
    counts = np.zeros(MAX_COUNTED_LENGTH + 1, dtype=np.int64)
    for stream in streams:
        for bits in stream.bits:
            lengths = np.diff(np.flatnonzero(bits & bit), append=len(bits))
            counts += np.bincount(np.minimum(lengths, MAX_COUNTED_LENGTH), minlength=MAX_COUNTED_LENGTH + 1)
    below = np.cumsum(counts)
    return {share: int(np.searchsorted(below, share * below[-1])) for share in (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)}


def _example_documents(shards: Shards) -> Iterator[str]:
    """Beginnings of evenly spaced documents."""
    ids, bits = shards.training.ids[0], shards.training.bits[0]
    documents = np.flatnonzero(bits & DOCUMENT_START)
    ends = np.append(documents[1:], len(bits))
    for at in sorted({len(documents) * number // EXAMPLES for number in range(EXAMPLES)}):
        begin, end = int(documents[at]), int(min(ends[at], documents[at] + EXAMPLE_TOKENS))
        yield "  " + _with_boundaries(shards, ids[begin:end], bits[begin:end])


def _with_boundaries(shards: Shards, ids: np.ndarray, bits: np.ndarray) -> str:
    parts = []
    for number, bit in zip(ids.tolist(), bits.tolist(), strict=True):
        mark = SENTENCE_MARK if bit & SENTENCE_START else WORD_MARK if bit & WORD_START else ""
        parts.append(mark + shards.tokenizer.token(number).replace("▁", " ").removeprefix("##"))
    return "".join(parts)
