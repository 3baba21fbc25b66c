"""Text to ids, fast: every distinct word is encoded once.

Ids are what `tokenizer.json` says. Its library spends its time on words that it has met before, so text is cut into
units that cannot influence each other (words, or single Chinese characters), and a table remembers the ids of each by
a hash of 64 bits. Units that the table lacks, and sentences that cannot be cut safely, go through the library.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from litebert.data.shards import id_dtype
from litebert.tokenizer import Tokenizer

CACHE_SLOTS = 1 << 21  # 16 bytes each; half of them are used before the table starts anew
LIBRARY_BATCH_UNITS = 200
HAN_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF))  # BERT knows these
_PUNCTUATION = "".join(chr(point) for point in range(0x21, 0x7F) if not chr(point).isalnum())
_PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))

# What a character does to units: nothing, belong to the unit after it, end a sentence, open a unit, or be one.
_NORMAL, _SPACE, _LINE_END, _UNIT_START, _UNIT = range(5)

# Where a unigram vocabulary is not safe to cut: at `▁`, which is how it writes a space; before a character that may
# join the space it follows, as marks do; and around letters and Arabic number signs that join their neighbours.
_SAFE_AFTER_SPACE = (
    "\\w\\x21-\\x7e\u00a1-\u00f7\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u2bff\u3001-\u3029\u3030\uff01-\uff65"
)
_JOINING = (
    "\u0e33\u0eb3\uff9e\uff9f\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e"
    "\U000110bd-\U0001193f\U00011a00-\U00011fff"
)
_UNSAFE = re.compile(f"▁| [^{_SAFE_AFTER_SPACE} ]|[{_JOINING}]")


@dataclass(frozen=True)
class CachedEncoding:
    """Sentences as ids, and where their units stand."""

    ids: np.ndarray
    lengths: np.ndarray
    """Tokens of each sentence."""
    text: str
    unit_starts: np.ndarray
    """In the text: a character of each unit."""
    first_tokens: np.ndarray
    """In the ids: the first token of each unit."""
    has_tokens: np.ndarray


class WordCache:
    """The ids of units, remembered."""

    def __init__(self, tokenizer: Tokenizer, definition: bytes) -> None:
        self.tokenizer = tokenizer
        self.cutting = UnitRules.of(json.loads(definition))
        self._dtype = id_dtype(tokenizer)
        self._model = _without_normalizer(definition, self.cutting)
        tokens = tokenizer.vocabulary()
        self._token_lengths = np.array(list(map(len, tokens)))
        self._plain = _plain_unit_pattern(tokens, self.cutting.lowercase)
        self._keys = np.zeros(CACHE_SLOTS, np.uint64)  # 0 is a free slot
        self._begins = np.zeros(CACHE_SLOTS, np.int32)
        self._lengths = np.zeros(CACHE_SLOTS, np.int32)
        self._pool = np.zeros(1 << 16, self._dtype)
        self._used = self._remembered = 0

    def encode(self, sentences: list[str]) -> CachedEncoding:
        """The ids of one or more sentences."""
        cutting = self.cutting
        safe = [sentence if cutting.is_safe(sentence) else "" for sentence in sentences]
        text = "".join(f" {sentence}\n" if sentence else "\n" for sentence in safe)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        kinds = cutting.kinds(points)
        starts = _unit_starts(kinds)
        if cutting.lowercase:
            points = points + np.uint32(32) * ((points >= 65) & (points <= 90))
        slots = self._slots_of(_hashes(points, starts), text, starts)
        begins, lengths = self._begins[slots], self._lengths[slots]
        line_ends = np.flatnonzero(kinds[starts] == _LINE_END)
        whole = [at for at, sentence in enumerate(sentences) if sentence and not safe[at]]
        used = self._used
        if whole:  # their ids are borrowed by the line end, and not remembered
            begins[line_ends[whole]], lengths[line_ends[whole]] = self._store(
                self.tokenizer.encode_ids([sentences[at] for at in whole])
            )
        ends = np.cumsum(lengths)
        ids = self._pool[np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1])]
        self._used = used
        return CachedEncoding(ids, np.diff(ends[line_ends], prepend=0), text, starts, ends - lengths, lengths > 0)

    def _slots_of(self, keys: np.ndarray, text: str, starts: np.ndarray) -> np.ndarray:
        """Where each unit stands in the table, after those it lacked were added."""
        slots, found = self._find(keys)
        if found.all():
            return slots
        missing = np.flatnonzero(~found)
        new, first = np.unique(keys[missing], return_index=True)
        if self._remembered + len(new) > CACHE_SLOTS // 2:
            self._keys[:] = 0
            self._used = self._remembered = 0
            return self._slots_of(keys, text, starts)  # what is frequent is back after a few batches
        ends = np.append(starts[1:], len(text))
        units = [text[starts[at] : ends[at]] for at in missing[first].tolist()]
        begins, lengths = self._store(self._encode(units))
        self._insert(new, begins, lengths)
        return self._find(keys)[0]

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slot of each key, or the free one that it would take, and which of the two it is."""
        slots = (keys & np.uint64(CACHE_SLOTS - 1)).astype(np.int64)
        held = self._keys[slots]
        others = np.flatnonzero((held != keys) & (held != 0))
        while len(others):
            slots[others] = (slots[others] + 1) & (CACHE_SLOTS - 1)
            held[others] = self._keys[slots[others]]
            others = others[(held[others] != keys[others]) & (held[others] != 0)]
        return slots, held == keys

    def _insert(self, keys: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> None:
        self._remembered += len(keys)
        while len(keys):
            slots, _ = self._find(keys)
            self._keys[slots] = keys  # where two want one slot, the last gets it and the others try again
            placed = self._keys[slots] == keys
            self._begins[slots[placed]], self._lengths[slots[placed]] = begins[placed], lengths[placed]
            keys, begins, lengths = keys[~placed], begins[~placed], lengths[~placed]

    def _store(self, found: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Put ids into the pool; where each of the lists begins there, and its length."""
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        total = int(lengths.sum())
        if self._used + total > len(self._pool):
            self._pool = np.concatenate([self._pool, np.zeros(max(total, len(self._pool)), self._dtype)])
        self._pool[self._used : self._used + total] = [number for ids in found for number in ids]
        begins = self._used + np.cumsum(lengths) - lengths
        self._used += total
        return begins, lengths

    def _encode(self, units: list[str]) -> list[list[int]]:
        """Ids by the library."""
        plain = [unit for unit in units if self._plain.fullmatch(unit)] if self._model is not None else []
        encoded: dict[str, list[int]] = {"\n": []}
        for at in range(0, len(plain), LIBRARY_BATCH_UNITS):
            some = plain[at : at + LIBRARY_BATCH_UNITS]
            encoded |= zip(some, self._encode_plain(some), strict=True)
        others = [unit for unit in units if unit not in encoded]
        # a unit inside a word is encoded after a symbol, which it cannot join, and without which it would start a word
        before = self.cutting.symbols[:1]
        skipped = len(self.tokenizer.encode_ids([before])[0])
        texts = [unit if unit[0] == " " else before + unit for unit in others]
        for unit, ids in zip(others, self.tokenizer.encode_ids(texts), strict=True):
            encoded[unit] = ids if unit[0] == " " else ids[skipped:]
        return [encoded[unit] for unit in units]

    def _encode_plain(self, units: list[str]) -> list[list[int]]:
        """Units of which the clean-up changes only the case, laid end to end: three times as fast."""
        assert self._model is not None
        words = map(str.lower, units) if self.cutting.lowercase else units
        texts = [_with_metaspace(word, self.cutting.symbols) for word in words]
        ids = self._model.encode_batch_fast([" ".join(texts)], add_special_tokens=False)[0].ids
        # pieces tile the text, so counting characters tells where a unit ends
        characters = np.cumsum([len(text) - text.count(" ") for text in texts])
        ends = (np.searchsorted(np.cumsum(self._token_lengths[ids]), characters) + 1).tolist()
        return [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _unit_starts(kinds: np.ndarray) -> np.ndarray:
    before = np.concatenate([[_LINE_END], kinds[:-1]])
    return np.flatnonzero(
        (kinds == _LINE_END) | ((kinds != _NORMAL) & (before != _SPACE)) | ((kinds == _NORMAL) & (before == _UNIT))
    )


def _hashes(points: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A hash per unit: the sum of a random-looking number for each character at its place."""
    lengths = np.diff(starts, append=len(points))
    places = np.arange(len(points), dtype=np.uint64) - np.repeat(starts.astype(np.uint64), lengths)
    mixed = points.astype(np.uint64) + (places << np.uint64(32)) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    hashes = np.add.reduceat(mixed, starts) if len(starts) else mixed[:0]
    hashes[hashes == 0] = 1
    return hashes


def _with_metaspace(unit: str, symbols: str) -> str:
    """A plain unit with `▁` for the space before it, cut at spaces that stand around a symbol."""
    word = unit.lstrip(" ")
    start = "▁" if unit[0] == " " else ""
    return f"{start} {word[0]} {word[1:]}".strip() if word[0] in symbols else start + word


def _without_normalizer(definition: bytes, cutting: UnitRules) -> tokenizers.Tokenizer | None:
    """A unigram tokenizer without its clean-up, for text that needs none; None when even plain text needs some."""
    if not cutting.symbols:
        return None
    pipeline = tokenizers.Tokenizer.from_str(definition.decode("utf-8"))
    plain = _PRINTABLE_ASCII.lower() if cutting.lowercase else _PRINTABLE_ASCII
    if pipeline.normalizer is None or pipeline.normalizer.normalize_str(plain) != plain:
        return None
    pipeline.normalizer = None
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit(" ")
    return pipeline


def _plain_unit_pattern(tokens: list[str], lowercase: bool) -> re.Pattern[str]:
    """Units of printable ASCII characters that are all pieces themselves, so that none can be unknown."""
    known = set(tokens)
    plain = [each for each in _PRINTABLE_ASCII if (each.lower() if lowercase else each) in known]
    return re.compile(f" *[{re.escape(''.join(plain))}]+" if plain else "(?!)")


# --- which tokenizers can be cut --------------------------------------------------------------------------------------

_CHARACTERWISE_STEPS = {"Nmt", "NFKD", "NFD", "NFC", "NFKC", "Lowercase", "Precompiled", "Strip", "StripAccents"}


@dataclass(frozen=True)
class UnitRules:
    """How text is cut into units that a tokenizer treats alike, whatever stands beside them."""

    specials: tuple[str, ...] = ()
    lowercase: bool = False
    """Words that differ in case have the same ids, so one entry does for both."""
    by_character: bool = False
    """Chinese characters and punctuation are units of their own, as in WordPiece vocabularies."""
    symbols: str = ""
    """Of unigram vocabularies: always pieces of their own, so units start with them too; such a unit stands inside
    a word, the others have a space before."""
    whole: bool = False
    """Nothing is known of the tokenizer, so nothing is cut."""

    @classmethod
    def of(cls, pipeline: dict[str, Any]) -> UnitRules:
        """For a `tokenizer.json`; every sentence is one unit when one of its steps could look across units."""
        steps = [
            *_flatten_steps(pipeline["normalizer"], "normalizers"),
            *_flatten_steps(pipeline["pre_tokenizer"], "pretokenizers"),
        ]
        added = pipeline["added_tokens"]
        # a word that was added may be of several units
        across = any(token["rstrip"] or token["single_word"] or not token["special"] for token in added)
        if across or not all(map(_acts_within_words, steps)):
            return cls(whole=True)
        kinds = {step["type"]: step for step in steps}
        specials = tuple(token["content"].lower() for token in added)
        bert = kinds.get("BertNormalizer", {"handle_chinese_chars": False, "lowercase": False})
        lowercase = "Lowercase" in kinds or bert["lowercase"]
        if "BertPreTokenizer" in kinds and bert["handle_chinese_chars"]:
            return cls(specials, lowercase, by_character=True)
        if "Metaspace" in kinds and "Split" in kinds:
            return cls(specials, lowercase, symbols=_symbols(kinds["Split"]))
        return cls(whole=True)

    def is_safe(self, sentence: str) -> bool:
        """Whether nothing in a sentence can act across units."""
        if self.whole:
            return False
        folded = sentence.lower()
        if any(special in folded for special in self.specials):
            return False
        return self.by_character or sentence.isascii() or not _UNSAFE.search(sentence)

    def kinds(self, points: np.ndarray) -> np.ndarray:
        """What each character does to units."""
        table = np.zeros(1 << 16, np.uint8)
        table[[ord(symbol) for symbol in self.symbols]] = _UNIT_START
        if self.by_character:
            table[[ord(mark) for mark in _PUNCTUATION]] = _UNIT
            for first, last in HAN_RANGES:
                table[first : last + 1] = _UNIT
        table[[ord(" "), ord("\n")]] = _SPACE, _LINE_END
        kinds = table[np.minimum(points, 0xFFFF)]
        # other characters may become a space or nothing, and then the symbol starts its word
        solid = (points > ord(" ")) & (points < 0x7F)
        kinds[1:][(kinds[1:] == _UNIT_START) & ~solid[:-1]] = _NORMAL
        if self.by_character:
            first, last = HAN_RANGES[-1]
            kinds[(points >= first) & (points <= last)] = _UNIT
        return kinds


def _symbols(split: dict[str, Any]) -> str:
    """The characters that a step always cuts out: the ones named in `a|b|\\c`."""
    return "".join(re.sub(r"\\(.)", r"\1", part) for part in split["pattern"]["Regex"].split("|"))


def _flatten_steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return (
        [part for each in step[inner] for part in _flatten_steps(each, inner)] if step["type"] == "Sequence" else [step]
    )


def _acts_within_words(step: dict[str, Any]) -> bool:
    """Whether a step does to a word what it does to it among others."""
    kind = step["type"]
    if kind in ("Replace", "Split"):
        pattern = step["pattern"]
        if kind == "Split":
            regex = pattern.get("Regex", " ")
            return step["behavior"] == "Isolated" and bool(re.fullmatch(r"(\\?[^ |]\|)*\\?[^ |]", regex))
        if "String" in pattern:
            return len(pattern["String"]) == 1 and pattern["String"] != " "
        return pattern["Regex"] == " {2,}" or bool(re.fullmatch(r"\[[^ ]*\]\+?", pattern["Regex"]))  # characters
    if kind == "Metaspace":
        return step["prepend_scheme"] == "always" and step["split"] is True
    return kind in _CHARACTERWISE_STEPS | {"BertNormalizer", "BertPreTokenizer"}
