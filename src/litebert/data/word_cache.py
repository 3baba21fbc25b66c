"""Fast tokenization with a cache: every distinct word is encoded once.

The ids equal those of the tokenizers library. Text is split into units that are tokenized independently (words, or
single Chinese characters), and a hash table maps the 64-bit hash of a unit to its ids. New units, and sentences that
cannot be split safely, are encoded by the library.
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

CACHE_SLOTS = 1 << 21  # of 16 bytes; the cache is cleared when half of them are used
LIBRARY_BATCH_UNITS = 200
HAN_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF))  # those of BERT
_PUNCTUATION = "".join(chr(point) for point in range(0x21, 0x7F) if not chr(point).isalnum())
_PRINTABLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))

# Kinds of characters: within a unit, a space (part of the next unit), a line break, start of a unit, a unit by itself.
_NORMAL, _SPACE, _LINE_END, _UNIT_START, _UNIT = range(5)

# Where a unigram vocabulary cannot be split safely: at `▁`, its symbol for a space; after a space before a character
# that may combine with it, such as marks; and around letters and Arabic number signs that join their neighbours.
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
    """Ids of sentences, and the positions of their units."""

    ids: np.ndarray
    lengths: np.ndarray
    """Tokens of each sentence."""
    text: str
    unit_starts: np.ndarray
    """Index in the text of the first character of each unit."""
    first_tokens: np.ndarray
    """Index in the ids of the first token of each unit."""
    has_tokens: np.ndarray


class WordCache:
    """An open-addressing hash table from units to their ids."""

    def __init__(self, tokenizer: Tokenizer, definition: bytes) -> None:
        self.tokenizer = tokenizer
        self.rules = UnitRules.from_definition(json.loads(definition))
        self._dtype = id_dtype(tokenizer)
        self._model = _without_normalizer(definition, self.rules)
        tokens = tokenizer.vocabulary()
        self._token_lengths = np.array(list(map(len, tokens)))
        self._plain = _plain_unit_pattern(tokens, self.rules.lowercase)
        self._keys = np.zeros(CACHE_SLOTS, np.uint64)  # 0 marks a free slot
        self._begins = np.zeros(CACHE_SLOTS, np.int32)
        self._lengths = np.zeros(CACHE_SLOTS, np.int32)
        self._pool = np.zeros(1 << 16, self._dtype)
        self._used = self._num_units = 0

    def encode(self, sentences: list[str]) -> CachedEncoding:
        """The ids of one or more sentences."""
        cutting = self.rules
        safe = [sentence if cutting.is_safe(sentence) else "" for sentence in sentences]
        text = "".join(f" {sentence}\n" if sentence else "\n" for sentence in safe)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        kinds = cutting.kinds(points)
        starts = _unit_starts(kinds)
        if cutting.lowercase:
            points = points + np.uint32(32) * ((points >= 65) & (points <= 90))
        slots = self._slots_with_new_units(_hashes(points, starts), text, starts)
        begins, lengths = self._begins[slots], self._lengths[slots]
        line_ends = np.flatnonzero(kinds[starts] == _LINE_END)
        unsafe = [at for at, sentence in enumerate(sentences) if sentence and not safe[at]]
        used = self._used
        if unsafe:  # their ids go to the unit of the line break and are not cached
            begins[line_ends[unsafe]], lengths[line_ends[unsafe]] = self._store(
                self.tokenizer.encode_ids([sentences[at] for at in unsafe])
            )
        ends = np.cumsum(lengths)
        ids = self._pool[np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1])]
        self._used = used
        return CachedEncoding(ids, np.diff(ends[line_ends], prepend=0), text, starts, ends - lengths, lengths > 0)

    def _slots_with_new_units(self, keys: np.ndarray, text: str, starts: np.ndarray) -> np.ndarray:
        """Slot of each unit, after adding the new ones."""
        slots, is_cached = self._find(keys)
        if is_cached.all():
            return slots
        missing = np.flatnonzero(~is_cached)
        new, first = np.unique(keys[missing], return_index=True)
        if self._num_units + len(new) > CACHE_SLOTS // 2:
            self._keys[:] = 0
            self._used = self._num_units = 0
            return self._slots_with_new_units(keys, text, starts)  # frequent units are cached again after a few batches
        ends = np.append(starts[1:], len(text))
        units = [text[starts[at] : ends[at]] for at in missing[first].tolist()]
        begins, lengths = self._store(self._encode(units))
        self._insert(new, begins, lengths)
        return self._find(keys)[0]

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slot of each key, or the free slot for it, and whether the key is there."""
        slots = (keys & np.uint64(CACHE_SLOTS - 1)).astype(np.int64)
        stored = self._keys[slots]
        collisions = np.flatnonzero((stored != keys) & (stored != 0))
        while len(collisions):  # linear probing
            slots[collisions] = (slots[collisions] + 1) & (CACHE_SLOTS - 1)
            stored[collisions] = self._keys[slots[collisions]]
            collisions = collisions[(stored[collisions] != keys[collisions]) & (stored[collisions] != 0)]
        return slots, stored == keys

    def _insert(self, keys: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> None:
        self._num_units += len(keys)
        while len(keys):
            slots, _ = self._find(keys)
            self._keys[slots] = keys  # of two keys for one slot the last is stored; the others retry
            placed = self._keys[slots] == keys
            self._begins[slots[placed]], self._lengths[slots[placed]] = begins[placed], lengths[placed]
            keys, begins, lengths = keys[~placed], begins[~placed], lengths[~placed]

    def _store(self, id_lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Append lists of ids to the pool; returns their starts and lengths."""
        lengths = np.fromiter(map(len, id_lists), np.int64, len(id_lists))
        total = int(lengths.sum())
        if self._used + total > len(self._pool):
            self._pool = np.concatenate([self._pool, np.zeros(max(total, len(self._pool)), self._dtype)])
        self._pool[self._used : self._used + total] = [number for ids in id_lists for number in ids]
        begins = self._used + np.cumsum(lengths) - lengths
        self._used += total
        return begins, lengths

    def _encode(self, units: list[str]) -> list[list[int]]:
        """Encode units with the library."""
        plain = [unit for unit in units if self._plain.fullmatch(unit)] if self._model is not None else []
        encoded: dict[str, list[int]] = {"\n": []}
        for at in range(0, len(plain), LIBRARY_BATCH_UNITS):
            group = plain[at : at + LIBRARY_BATCH_UNITS]
            encoded |= zip(group, self._encode_plain(group), strict=True)
        others = [unit for unit in units if unit not in encoded]
        # a unit within a word is encoded after a symbol, which is a token by itself, so that it does not start a word
        before = self.rules.symbols[:1]
        skipped = len(self.tokenizer.encode_ids([before])[0])
        texts = [unit if unit[0] == " " else before + unit for unit in others]
        for unit, ids in zip(others, self.tokenizer.encode_ids(texts), strict=True):
            encoded[unit] = ids if unit[0] == " " else ids[skipped:]
        return [encoded[unit] for unit in units]

    def _encode_plain(self, units: list[str]) -> list[list[int]]:
        """Encode units that normalisation only lower-cases, in one string: three times as fast."""
        assert self._model is not None
        words = map(str.lower, units) if self.rules.lowercase else units
        texts = [_with_metaspace(word, self.rules.symbols) for word in words]
        ids = self._model.encode_batch_fast([" ".join(texts)], add_special_tokens=False)[0].ids
        # tokens tile the text, so their lengths give the ends of units
        characters = np.cumsum([len(text) - text.count(" ") for text in texts])
        ends = (np.searchsorted(np.cumsum(self._token_lengths[ids]), characters) + 1).tolist()
        return [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _unit_starts(kinds: np.ndarray) -> np.ndarray:
    before = np.concatenate([[_LINE_END], kinds[:-1]])
    return np.flatnonzero(
        (kinds == _LINE_END) | ((kinds != _NORMAL) & (before != _SPACE)) | ((kinds == _NORMAL) & (before == _UNIT))
    )


def _hashes(points: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Hash of each unit: the sum over its characters of a mixed (character, position)."""
    lengths = np.diff(starts, append=len(points))
    positions = np.arange(len(points), dtype=np.uint64) - np.repeat(starts.astype(np.uint64), lengths)
    mixed = points.astype(np.uint64) + (positions << np.uint64(32)) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    hashes = np.add.reduceat(mixed, starts) if len(starts) else mixed[:0]
    hashes[hashes == 0] = 1
    return hashes


def _with_metaspace(unit: str, symbols: str) -> str:
    """A plain unit with `▁` for a leading space, and with a symbol at its start set apart by spaces."""
    word = unit.lstrip(" ")
    start = "▁" if unit[0] == " " else ""
    return f"{start} {word[0]} {word[1:]}".strip() if word[0] in symbols else start + word


def _without_normalizer(definition: bytes, cutting: UnitRules) -> tokenizers.Tokenizer | None:
    """A unigram tokenizer without its normaliser, for plain text; None if that would change plain text."""
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
    """Units of printable ASCII characters that are all in the vocabulary, so that none can be unknown."""
    known = set(tokens)
    plain = [char for char in _PRINTABLE_ASCII if (char.lower() if lowercase else char) in known]
    return re.compile(f" *[{re.escape(''.join(plain))}]+" if plain else "(?!)")


# --- rules for splitting into units -----------------------------------------------------------------------------------

_CHARACTERWISE_STEPS = {"Nmt", "NFKD", "NFD", "NFC", "NFKC", "Lowercase", "Precompiled", "Strip", "StripAccents"}


@dataclass(frozen=True)
class UnitRules:
    """How text is split into units whose ids do not depend on their neighbours."""

    specials: tuple[str, ...] = ()
    lowercase: bool = False
    """Words that differ in case share a cache entry."""
    by_character: bool = False
    """Chinese characters and punctuation are units by themselves, as in WordPiece vocabularies."""
    symbols: str = ""
    """In unigram vocabularies, characters that are always tokens by themselves: a unit also starts at each of them,
    within a word; other units start with a space."""
    is_uncuttable: bool = False
    """The tokenizer is of an unknown kind: sentences are not split."""

    @classmethod
    def from_definition(cls, pipeline: dict[str, Any]) -> UnitRules:
        """Rules for a `tokenizer.json`; sentences are not split if one of its steps could act across units."""
        steps = [
            *_flatten_steps(pipeline["normalizer"], "normalizers"),
            *_flatten_steps(pipeline["pre_tokenizer"], "pretokenizers"),
        ]
        added = pipeline["added_tokens"]
        # an added word may span several units
        across = any(token["rstrip"] or token["single_word"] or not token["special"] for token in added)
        if across or not all(map(_acts_within_words, steps)):
            return cls(is_uncuttable=True)
        kinds = {step["type"]: step for step in steps}
        specials = tuple(token["content"].lower() for token in added)
        bert = kinds.get("BertNormalizer", {"handle_chinese_chars": False, "lowercase": False})
        lowercase = "Lowercase" in kinds or bert["lowercase"]
        if "BertPreTokenizer" in kinds and bert["handle_chinese_chars"]:
            return cls(specials, lowercase, by_character=True)
        if "Metaspace" in kinds and "Split" in kinds:
            return cls(specials, lowercase, symbols=_symbols(kinds["Split"]))
        return cls(is_uncuttable=True)

    def is_safe(self, sentence: str) -> bool:
        """Can the sentence be split without changing its ids?"""
        if self.is_uncuttable:
            return False
        folded = sentence.lower()
        if any(special in folded for special in self.specials):
            return False
        return self.by_character or sentence.isascii() or not _UNSAFE.search(sentence)

    def kinds(self, points: np.ndarray) -> np.ndarray:
        """The kind of each character."""
        table = np.zeros(1 << 16, np.uint8)
        table[[ord(symbol) for symbol in self.symbols]] = _UNIT_START
        if self.by_character:
            table[[ord(mark) for mark in _PUNCTUATION]] = _UNIT
            for first, last in HAN_RANGES:
                table[first : last + 1] = _UNIT
        table[[ord(" "), ord("\n")]] = _SPACE, _LINE_END
        kinds = table[np.minimum(points, 0xFFFF)]
        # other characters may be normalised to a space or nothing, and then the symbol starts a word
        solid = (points > ord(" ")) & (points < 0x7F)
        kinds[1:][(kinds[1:] == _UNIT_START) & ~solid[:-1]] = _NORMAL
        if self.by_character:
            first, last = HAN_RANGES[-1]
            kinds[(points >= first) & (points <= last)] = _UNIT
        return kinds


def _symbols(split: dict[str, Any]) -> str:
    """The characters that a Split step isolates: those in its pattern `a|b|\\c`."""
    return "".join(re.sub(r"\\(.)", r"\1", part) for part in split["pattern"]["Regex"].split("|"))


def _flatten_steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return (
        [part for child in step[inner] for part in _flatten_steps(child, inner)]
        if step["type"] == "Sequence"
        else [step]
    )


def _acts_within_words(step: dict[str, Any]) -> bool:
    """Does a step treat each word independently of its neighbours?"""
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
