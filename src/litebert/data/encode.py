"""Documents to token ids and bits, by a recipe that can be sent to other processes and machines."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from litebert.data.decontamination import ExcludedNgrams
from litebert.data.sentences import (
    ChineseScript,
    SentenceSplitting,
    script_converter,
    scrub_personal_data,
    sentence_splitter,
)
from litebert.data.shards import DOCUMENT_START, SENTENCE_START, WORD_START, id_dtype, starts_word
from litebert.data.word_cache import HAN_RANGES, WordCache
from litebert.errors import ConfigError, DataError, require_extra
from litebert.tokenizer import Tokenizer

WordSegmenter = Literal["pieces", "jieba"]

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
CHUNK_CHARACTERS = 1 << 17


@dataclass(frozen=True)
class EncodingConfig:
    """All that turns text into ids and bits; small enough to be sent to every worker."""

    tokenizer: dict[str, bytes]
    """The files of the tokenizer's folder: a worker may stand on another machine."""
    sentences: SentenceSplitting = "split"
    language: str = "en"
    words: WordSegmenter = "pieces"
    dictionary: tuple[str, ...] = ()
    """Words that jieba must know."""
    script: ChineseScript = "keep"
    scrub: bool = False
    excluded: ExcludedNgrams | None = None


@dataclass(frozen=True)
class EncodedDocuments:
    """Documents laid end to end, as bytes that go to disk as they are."""

    ids: bytes
    bits: bytes
    lengths: list[int]
    """Tokens of each document; 0 when it holds nothing that the tokenizer keeps."""
    excluded: int = 0
    """Lines that were left out."""


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        tokenizer.save(name)
        return {path.name: path.read_bytes() for path in Path(name).glob("*.json")}


def check_extras(recipe: EncodingConfig) -> None:
    """Complain here, where it can be read, and not in a worker."""
    sentence_splitter(recipe.sentences, recipe.language)
    script_converter(recipe.script)
    if recipe.words == "jieba":
        require_extra("rjieba", "train")


def is_chinese(texts: Sequence[str]) -> bool:
    """Whether more than half of the letters are Chinese characters, and hardly any are Japanese."""
    text = "".join(texts)
    han = np.count_nonzero(_is_han(np.frombuffer(text.encode("utf-32-le"), np.uint32)))
    kana = len(re.findall("[\u3041-\u30ff]", text))
    return 2 * han > sum(map(str.isalpha, text)) and 20 * kana < len(text)


class TextEncoder:
    """Applies a recipe to batches of documents."""

    def __init__(self, recipe: EncodingConfig) -> None:
        with tempfile.TemporaryDirectory() as name:
            for file, content in recipe.tokenizer.items():
                (Path(name) / file).write_bytes(content)
            self.tokenizer = Tokenizer.load(name)
        self.recipe = recipe
        self._dtype = id_dtype(self.tokenizer)
        self._word_bits = np.where(starts_word(self.tokenizer), WORD_START, 0).astype(np.uint8)
        self._split = sentence_splitter(recipe.sentences, recipe.language)
        self._convert = script_converter(recipe.script)
        self._table = WordCache(self.tokenizer, recipe.tokenizer["tokenizer.json"])

    def __call__(self, documents: Sequence[str]) -> EncodedDocuments:
        if not documents:
            return EncodedDocuments(b"", b"", [])
        counts, sentences = [], []
        excluded = 0
        for document in documents:
            if self.recipe.excluded is not None:
                document, lines = self.recipe.excluded.without(document)
                excluded += lines
            if self._convert is not None:
                document = self._convert(document)
            if self.recipe.scrub:
                document = scrub_personal_data(document)
            found = self._split(document)
            counts.append(len(found))
            sentences += found
        encode = self._by_units
        if self.recipe.words == "jieba" and not self._table.cutting.by_character:
            encode = self._by_offsets
        parts = [encode(chunk) for chunk in _sentence_chunks(sentences)]
        ids, bits, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        ends = np.cumsum(lengths)
        bits[(ends - lengths)[lengths > 0]] |= SENTENCE_START | WORD_START
        document_ends = np.concatenate([[0], ends])[np.cumsum(counts)]
        document_lengths = np.diff(document_ends, prepend=0)
        bits[(document_ends - document_lengths)[document_lengths > 0]] |= DOCUMENT_START
        return EncodedDocuments(ids.tobytes(), bits.tobytes(), document_lengths.tolist(), excluded)

    def _by_units(self, sentences: list[str]) -> Arrays:
        """Ids, bits, and tokens per sentence."""
        pieces = self._table.encode(sentences)
        bits = self._word_bits[pieces.ids]
        if self.recipe.words == "jieba":
            points = np.frombuffer(pieces.text.encode("utf-32-le"), np.uint32)[pieces.unit_starts]
            inside = self._continues(pieces.text)[pieces.unit_starts] & _is_han(points) & pieces.has_tokens
            bits[pieces.first_tokens[inside]] &= ~np.uint8(WORD_START)
        return pieces.ids, bits, pieces.lengths

    def _continues(self, text: str) -> np.ndarray:
        """For each character: does jieba let no word start there?"""
        continues = np.ones(len(text) + 1, dtype=bool)
        continues[np.cumsum([0, *map(len, self._jieba.cut(text))])] = False
        return continues

    def _by_offsets(self, sentences: list[str]) -> Arrays:
        """The same for vocabularies whose pieces hold several Chinese characters: slower, by exact offsets."""
        ids, bits = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the share of unknown tokens is told at the end
            encodings = self.tokenizer.encode(sentences)
        for sentence, encoding in zip(sentences, encodings, strict=True):
            numbers = np.array(encoding.ids[1:-1], self._dtype)  # without [CLS] and [SEP]
            starts = np.array([start for start, _ in encoding.offsets[1:-1]], dtype=np.int64)
            points = np.frombuffer((sentence + " ").encode("utf-32-le"), np.uint32)
            inside = self._continues(sentence)[starts] & _is_han(points)[starts]
            ids.append(numbers)
            bits.append(np.where(inside, 0, self._word_bits[numbers]).astype(np.uint8))
        return np.concatenate(ids), np.concatenate(bits), np.array(list(map(len, ids)))

    @cached_property
    def _jieba(self) -> Any:
        jieba = require_extra("rjieba", "train").Jieba()
        for word in self.recipe.dictionary:
            jieba.add_word(word, None, None)
        return jieba


def read_dictionary(paths: Sequence[Path]) -> tuple[str, ...]:
    """The words of user dictionaries: one on each line; a frequency or tag after it, as jieba allows, is ignored."""
    words = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); --dictionary takes text files") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start} is not UTF-8; convert the dictionary first") from error
        words += [line.split()[0] for line in lines if line.strip()]
    return tuple(words)


def _sentence_chunks(sentences: list[str]) -> Iterator[list[str]]:
    """Stretches of sentences short enough for the cache."""
    chunk: list[str] = []
    characters = 0
    for sentence in sentences:
        chunk.append(sentence)
        characters += len(sentence)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _is_han(points: np.ndarray) -> np.ndarray:
    return np.logical_or.reduce([(points >= first) & (points <= last) for first, last in HAN_RANGES])
