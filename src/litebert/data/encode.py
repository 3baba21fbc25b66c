"""Encoding documents as token ids and boundary bits, configured by a picklable `EncodingConfig`."""

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
    """How text is encoded; sent to every worker."""

    tokenizer: dict[str, bytes]
    """The files of the tokenizer, as a worker may run on another machine."""
    sentences: SentenceSplitting = "split"
    language: str = "en"
    words: WordSegmenter = "pieces"
    dictionary: tuple[str, ...] = ()
    """Additional words for jieba."""
    script: ChineseScript = "keep"
    scrub: bool = False
    excluded: ExcludedNgrams | None = None


@dataclass(frozen=True)
class EncodedDocuments:
    """Concatenated documents, as the bytes of a shard."""

    ids: bytes
    bits: bytes
    lengths: list[int]
    """Tokens of each document; 0 if normalisation leaves nothing."""
    excluded: int = 0
    """Number of lines removed by decontamination."""


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        tokenizer.save(name)
        return {path.name: path.read_bytes() for path in Path(name).glob("*.json")}


def check_extras(config: EncodingConfig) -> None:
    """Raise for a missing optional package here rather than in a worker."""
    sentence_splitter(config.sentences, config.language)
    script_converter(config.script)
    if config.words == "jieba":
        require_extra("rjieba", "train")


def is_chinese(texts: Sequence[str]) -> bool:
    """Are more than half of the letters Chinese characters, and hardly any Japanese kana?"""
    text = "".join(texts)
    han = np.count_nonzero(_is_han(np.frombuffer(text.encode("utf-32-le"), np.uint32)))
    kana = len(re.findall("[\u3041-\u30ff]", text))
    return 2 * han > sum(map(str.isalpha, text)) and 20 * kana < len(text)


class TextEncoder:
    """Encodes batches of documents."""

    def __init__(self, config: EncodingConfig) -> None:
        with tempfile.TemporaryDirectory() as name:
            for file, content in config.tokenizer.items():
                (Path(name) / file).write_bytes(content)
            self.tokenizer = Tokenizer.load(name)
        self.config = config
        self._dtype = id_dtype(self.tokenizer)
        self._word_bits = np.where(starts_word(self.tokenizer), WORD_START, 0).astype(np.uint8)
        self._split_sentences = sentence_splitter(config.sentences, config.language)
        self._convert_script = script_converter(config.script)
        self._cache = WordCache(self.tokenizer, config.tokenizer["tokenizer.json"])

    def __call__(self, documents: Sequence[str]) -> EncodedDocuments:
        if not documents:
            return EncodedDocuments(b"", b"", [])
        counts, sentences = [], []
        excluded = 0
        for document in documents:
            if self.config.excluded is not None:
                document, lines = self.config.excluded.remove_from(document)
                excluded += lines
            if self._convert_script is not None:
                document = self._convert_script(document)
            if self.config.scrub:
                document = scrub_personal_data(document)
            split = self._split_sentences(document)
            counts.append(len(split))
            sentences += split
        encode = self._encode_by_cache
        if self.config.words == "jieba" and not self._cache.rules.by_character:
            encode = self._encode_by_offsets
        parts = [encode(chunk) for chunk in _sentence_chunks(sentences)]
        ids, bits, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        ends = np.cumsum(lengths)
        bits[(ends - lengths)[lengths > 0]] |= SENTENCE_START | WORD_START
        document_ends = np.concatenate([[0], ends])[np.cumsum(counts)]
        document_lengths = np.diff(document_ends, prepend=0)
        bits[(document_ends - document_lengths)[document_lengths > 0]] |= DOCUMENT_START
        return EncodedDocuments(ids.tobytes(), bits.tobytes(), document_lengths.tolist(), excluded)

    def _encode_by_cache(self, sentences: list[str]) -> Arrays:
        """Ids, bits, and tokens per sentence."""
        encoding = self._cache.encode(sentences)
        bits = self._word_bits[encoding.ids]
        if self.config.words == "jieba":
            points = np.frombuffer(encoding.text.encode("utf-32-le"), np.uint32)[encoding.unit_starts]
            inside = self._inside_word(encoding.text)[encoding.unit_starts] & _is_han(points) & encoding.has_tokens
            bits[encoding.first_tokens[inside]] &= ~np.uint8(WORD_START)
        return encoding.ids, bits, encoding.lengths

    def _inside_word(self, text: str) -> np.ndarray:
        """For each character: is it inside a word of jieba's, not at its start?"""
        inside = np.ones(len(text) + 1, dtype=bool)
        inside[np.cumsum([0, *map(len, self._jieba.cut(text))])] = False
        return inside

    def _encode_by_offsets(self, sentences: list[str]) -> Arrays:
        """The same for vocabularies with tokens of several Chinese characters: slower, by exact offsets."""
        ids, bits = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fraction of unknown tokens is reported at the end
            encodings = self.tokenizer.encode(sentences)
        for sentence, encoding in zip(sentences, encodings, strict=True):
            numbers = np.array(encoding.ids[1:-1], self._dtype)  # without [CLS] and [SEP]
            starts = np.array([start for start, _ in encoding.offsets[1:-1]], dtype=np.int64)
            points = np.frombuffer((sentence + " ").encode("utf-32-le"), np.uint32)
            inside = self._inside_word(sentence)[starts] & _is_han(points)[starts]
            ids.append(numbers)
            bits.append(np.where(inside, 0, self._word_bits[numbers]).astype(np.uint8))
        return np.concatenate(ids), np.concatenate(bits), np.array(list(map(len, ids)))

    @cached_property
    def _jieba(self) -> Any:
        jieba = require_extra("rjieba", "train").Jieba()
        for word in self.config.dictionary:
            jieba.add_word(word, None, None)
        return jieba


def read_dictionary(paths: Sequence[Path]) -> tuple[str, ...]:
    """The words of jieba dictionaries, one per line; a frequency or tag after the word is ignored."""
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
    """Groups of sentences of about `CHUNK_CHARACTERS` each."""
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
