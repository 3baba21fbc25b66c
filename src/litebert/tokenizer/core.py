"""A tokenizer: text to ids with exact character offsets, and back; load and save in the ecosystem's formats."""

from __future__ import annotations

import hashlib
import io
import json
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import tokenizers

from litebert.errors import CheckpointError, ConfigError, DataError, LitebertError
from litebert.files import atomic_write, read_json, read_limited
from litebert.tokenizer.pipelines import (
    PUNCTUATION_FOLDS,
    ROBERTA_SPECIALS,
    UNIGRAM_SPECIALS,
    WORDPIECE_SPECIALS,
    google_normalizer,
    metaspace_at_start_only,
    unigram_pipeline,
    wordpiece_pipeline,
)
from litebert.tokenizer.scripts import HAN, UNSPACED_CHARACTER, is_mostly
from litebert.tokenizer.spiece import parse_spiece

Truncation = Literal["longest_first", "only_first", "only_second"]

TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "vocab.txt")
MAX_UNKNOWN_FRACTION = 0.05  # above it, the text is probably in another language than the vocabulary


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoded text or pair of texts. Item i of every list belongs to token i."""

    ids: list[int]
    """Token ids."""
    type_ids: list[int]
    """0 for the first text with its special tokens, 1 for the second."""
    _raw: tokenizers.Encoding = field(repr=False, compare=False)
    _texts: tuple[str, ...] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[str]:
        """The tokens as strings; `▁` stands for a preceding space."""
        return self._raw.tokens

    @property
    def sequence_ids(self) -> list[int | None]:
        """Index of the text of each token; None for [CLS] and [SEP]."""
        return self._raw.sequence_ids

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Character offsets: `text[start:end]` is the source of a token, without surrounding white space.

        Special tokens have (0, 0).
        """
        spans = []
        raw = list(zip(self._raw.offsets, self._raw.sequence_ids, strict=True))
        starts = {(sequence, start) for (start, _), sequence in raw}
        for (start, end), sequence in raw:
            if sequence is None:
                spans.append((0, 0))
                continue
            text = self._texts[sequence]
            while start < end and text[start].isspace():
                start += 1
            while end > start and text[end - 1].isspace():
                end -= 1
            # a combining mark belongs to the token of its letter, even if normalisation dropped it
            while start < end < len(text) and _continues_character(text[end]) and (sequence, end) not in starts:
                end += 1
            spans.append((start, end))
        return spans


class Tokenizer:
    """Text to ids and back. `encode` is thread-safe."""

    def __init__(self, pipeline: tokenizers.Tokenizer, specials: dict[str, str], spiece: bytes | None = None) -> None:
        self._pipeline = pipeline
        self._json = pipeline.to_str()
        self.specials = specials
        """Role (`pad unk cls sep mask`) to token."""
        self.spiece = spiece
        """The SentencePiece model it was imported from, saved beside `tokenizer.json` for other tools."""
        self.pad_id = self._id_of("pad")
        self.unk_id = self._id_of("unk")
        self.cls_id = self._id_of("cls")
        self.sep_id = self._id_of("sep")
        self.mask_id = self._id_of("mask")
        self.warn_unknown = True
        """Whether to warn, once, about a text with many unknown characters; the warning quotes it."""
        self._pipeline_with_truncation = lru_cache(maxsize=16)(self._build_pipeline_with_truncation)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor arguments: an `lru_cache` of a method cannot be pickled."""
        return Tokenizer, (self._pipeline, self.specials, self.spiece)

    @classmethod
    def from_spiece(cls, path: str | Path, *, lowercase: bool = True, keep_accents: bool = False) -> Tokenizer:
        """Import the `spiece.model` of an English ALBERT, with the normalisation of Google's code."""
        path = Path(path)
        content = read_limited(path)
        model = parse_spiece(content, str(path))
        missing = [token for token in UNIGRAM_SPECIALS.values() if token not in model.pieces]
        if missing:
            raise CheckpointError(
                f"{path}: lacks {', '.join(missing)}, which ALBERT's vocabularies have; "
                "it is of another model: train one with litebert tokenizer"
            )
        try:
            normalizer = google_normalizer(model.charsmap, lowercase, keep_accents)
        except Exception as error:  # the library's only type for this
            raise CheckpointError(
                f"{path}: its normalisation rules are damaged ({error}); download or train it again"
            ) from error
        return cls(unigram_pipeline(model, normalizer), UNIGRAM_SPECIALS, spiece=content)

    @classmethod
    def from_vocab(
        cls,
        path: str | Path,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        fold_punctuation: bool = False,
    ) -> Tokenizer:
        """Import the `vocab.txt` of a Chinese ALBERT, with BERT's WordPiece tokenization.

        `fold_punctuation` also maps curly quotes, dashes and full-width letters to characters of the vocabulary.
        """
        path = Path(path)
        try:
            lines = io.StringIO(
                read_limited(path).decode("utf-8"), newline=None
            )  # str.splitlines also splits at U+2028
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{path}: byte {error.start} is not UTF-8; a vocab.txt is UTF-8, one token per line"
            ) from error
        vocabulary: dict[str, int] = {}
        for number, line in enumerate(lines):
            first = vocabulary.setdefault(line.rstrip("\n"), number)
            if first != number:
                raise CheckpointError(f"{path}, line {number + 1}: repeats line {first + 1}; every token has one id")
        missing = [token for token in WORDPIECE_SPECIALS.values() if token not in vocabulary]
        if missing:
            raise CheckpointError(
                f"{path}: lacks {', '.join(missing)}; a vocab.txt has one token per line, these among them"
            )
        pipeline = wordpiece_pipeline(
            vocabulary, lowercase=lowercase, strip_accents=strip_accents, fold_punctuation=fold_punctuation
        )
        return cls(pipeline, WORDPIECE_SPECIALS)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load `tokenizer.json`, else `spiece.model`, else `vocab.txt` from a folder, or one of these files."""
        folder = Path(folder)
        files = (folder / name for name in TOKENIZER_FILES if (folder / name).is_file())
        path = folder if folder.is_file() else next(files, None)
        if path is None:
            raise CheckpointError(
                f"{folder}: holds none of {', '.join(TOKENIZER_FILES)}; train one with: "
                f"litebert tokenizer --out {folder}"
            )
        settings = _read_settings(path.parent)
        lowercase = bool(settings.get("do_lower_case", True))
        if path.suffix == ".model":
            return cls.from_spiece(path, lowercase=lowercase, keep_accents=bool(settings.get("keep_accents", False)))
        if path.suffix == ".txt":
            return cls.from_vocab(path, lowercase=lowercase, strip_accents=settings.get("strip_accents"))
        try:
            pipeline = tokenizers.Tokenizer.from_str(read_limited(path).decode("utf-8"))
        except Exception as error:
            raise CheckpointError(f"{path}: not a tokenizer.json ({error}); save the tokenizer again") from error
        pipeline.no_padding()  # a saved file may hold padding and truncation settings; both are up to the caller
        pipeline.no_truncation()
        spiece = path.parent / "spiece.model"
        return cls(
            pipeline, _special_tokens_from(settings, pipeline), read_limited(spiece) if spiece.is_file() else None
        )

    def save(self, folder: str | Path, max_length: int = 512) -> None:
        """Save for `Tokenizer.load` and transformers' `AutoTokenizer`, which then give the same ids."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / "tokenizer.json", self._json)
        settings = {f"{role}_token": token for role, token in self.specials.items()} | {
            "tokenizer_class": "PreTrainedTokenizerFast",  # the class that reads tokenizer.json directly
            # without this, transformers omits the token types of pairs
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
        }
        atomic_write(folder / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
        if self.spiece is not None:
            atomic_write(folder / "spiece.model", self.spiece)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including special tokens and added words."""
        return int(self._pipeline.get_vocab_size())

    def extended(self, words: Sequence[str]) -> Tokenizer:
        """A tokenizer with whole words added to the end of the vocabulary, except those it has already.

        Words of scripts without spaces match anywhere in a text, exactly as written; other words only as whole words.
        """
        known = set(self._pipeline.get_vocab())
        new_words = [word for word in dict.fromkeys(words) if not {word, f"▁{word}"} & known]
        unspaced = {word for word in new_words if UNSPACED_CHARACTER.search(word)}
        pipeline = tokenizers.Tokenizer.from_str(metaspace_at_start_only(self._json) if unspaced else self._json)
        # a new word includes the space before it, like the words of the vocabulary; words that match anywhere are
        # matched before normalisation, as BERT's puts spaces around Chinese characters
        for word in new_words:
            single_word = word not in unspaced
            pipeline.add_tokens(
                [tokenizers.AddedToken(word, single_word=single_word, lstrip=True, normalized=single_word)]
            )
        return Tokenizer(pipeline, self.specials)

    @property
    def added(self) -> frozenset[int]:
        """Ids of whole words that were added to the vocabulary."""
        decoder = self._pipeline.get_added_tokens_decoder()
        return frozenset(number for number, token in decoder.items() if not token.special)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what defines the ids; shards store it, so that no model trains on ids of another vocabulary."""
        # the library parses decimals only to within one unit in the last place, so scores are rounded
        content = json.loads(self._json, parse_float=lambda digits: round(float(digits), 6))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> list[Encoding]:
        """Encode texts or pairs of texts as `[CLS] a [SEP] b [SEP]`, truncated to `max_length` tokens."""
        inputs = _checked_inputs(texts, pairs)
        pipeline = self._pipeline if max_length is None else self._pipeline_with_truncation(max_length, truncation)
        encodings = []
        try:
            with _rejecting_surrogates():
                results = pipeline.encode_batch([x if len(x) == 2 else x[0] for x in inputs])
        except LitebertError:
            raise
        except Exception as error:  # the library's only type for this
            if max_length is None:
                raise CheckpointError(f"tokenizer.json cannot encode this text ({error}); save it again") from error
            raise DataError(
                f"truncation={truncation!r} cannot bring every text to max_length={max_length} ({error}); "
                "use longest_first or a larger max_length"
            ) from error
        for raw, input_texts in zip(results, inputs, strict=True):
            encoding = Encoding(raw.ids, raw.type_ids, raw, input_texts)
            if self.warn_unknown and self.unk_id in encoding.ids:
                self._warn_if_unknown(encoding)
            encodings.append(encoding)
        return encodings

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts without special tokens."""
        with _rejecting_surrogates():
            return [raw.ids for raw in self._pipeline.encode_batch_fast(list(texts), add_special_tokens=False)]

    def piece_scores(self) -> list[float] | None:
        """Unigram log-probability of each token, if the vocabulary is SentencePiece's; else None."""
        model = json.loads(self._json)["model"]
        scores = [float(score) for _, score in model["vocab"]] if model["type"] == "Unigram" else None
        return scores and [*scores, *[min(scores)] * (self.vocab_size - len(scores))]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids, as normalised; with special tokens unless `skip_special`."""
        return str(self._pipeline.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, number: int) -> str:
        """The token of an id."""
        token = self._pipeline.id_to_token(number) if number >= 0 else None
        if token is None:
            raise DataError(f"id {number} is not in the vocabulary of {self.vocab_size} tokens")
        return str(token)

    def vocabulary(self) -> list[str]:
        """All tokens, ordered by id."""
        return [self.token(number) for number in range(self.vocab_size)]

    def _id_of(self, role: str) -> int:
        number = self._pipeline.token_to_id(self.specials[role])
        if number is None:
            raise CheckpointError(
                f"the vocabulary lacks {self.specials[role]!r}, its {role} token; "
                "ALBERT needs pad, unk, cls, sep and mask: name them in tokenizer_config.json"
            )
        return int(number)

    def _build_pipeline_with_truncation(self, max_length: int, truncation: Truncation) -> tokenizers.Tokenizer:
        """A copy with truncation: in the library this is a setting of the tokenizer, which threads would share."""
        if max_length < 8:
            raise ConfigError(f"max_length={max_length} leaves no room for text; it must be at least 8")
        copy = tokenizers.Tokenizer.from_str(self._json)
        copy.enable_truncation(max_length, strategy=truncation)
        return copy

    def _warn_if_unknown(self, encoding: Encoding) -> None:
        characters = sum(len(text) for text in encoding._texts)
        unknown = "".join(
            encoding._texts[sequence][start:end]
            for number, (start, end), sequence in zip(
                encoding.ids, encoding.offsets, encoding.sequence_ids, strict=True
            )
            if number == self.unk_id and sequence is not None
        )
        if len(unknown) > MAX_UNKNOWN_FRACTION * characters:
            self.warn_unknown = False
            remedy = "use a model of the text's language, or train a vocabulary with: litebert tokenizer"
            if set(unknown) <= set(PUNCTUATION_FOLDS):
                remedy = "import the vocabulary with fold_punctuation, which maps them to what it has"
            elif is_mostly(HAN, unknown):
                remedy = f"if they are traditional characters, convert them to simplified (OpenCC's t2s); else {remedy}"
            warnings.warn(
                f"{len(unknown)} of {characters} characters of {encoding._texts[0][:40]!r} are unknown to this "
                f"vocabulary of {self.vocab_size}, so the model cannot read them: {remedy}",
                stacklevel=3,
            )


@contextmanager
def _rejecting_surrogates() -> Iterator[None]:
    """Turn the library's error for lone surrogates into a `DataError`."""
    try:
        yield
    except TypeError as error:
        raise DataError(
            "a text holds a lone surrogate, which is not a character; "
            "clean it with text.encode('utf-8', 'replace').decode()"
        ) from error


def _continues_character(character: str) -> bool:
    """Is it part of the preceding character: a combining mark, or a later letter of a Korean syllable?"""
    return character >= "\u0300" and (
        unicodedata.category(character).startswith("M")
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7ff"
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    return settings


def _special_tokens_from(settings: dict[str, Any], pipeline: tokenizers.Tokenizer) -> dict[str, str]:
    """Special tokens by role: from the settings, or else the usual name that the vocabulary has."""
    specials = {}
    for role in UNIGRAM_SPECIALS:
        configured = settings.get(f"{role}_token")
        if isinstance(configured, dict):  # older files store the token with its flags
            configured = configured.get("content")
        if configured is not None and not isinstance(configured, str):
            raise CheckpointError(f"{role}_token={configured!r} in tokenizer_config.json must be a string")
        usual = [name[role] for name in (UNIGRAM_SPECIALS, WORDPIECE_SPECIALS, ROBERTA_SPECIALS)]
        specials[role] = configured or next(
            (name for name in usual if pipeline.token_to_id(name) is not None), usual[0]
        )
    return specials


def _checked_inputs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[tuple[str, ...]]:
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("encode takes a list of texts; wrap a single one: encode([text])")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts and {len(pairs)} second texts; every text needs exactly one")
    columns = [texts] if pairs is None else [texts, pairs]
    for column in columns:
        check_texts(column)
    return list(zip(*columns, strict=True))


def check_texts(texts: Sequence[object]) -> None:
    """Raise if an item is not a string."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {number} is {text!r}, a {type(text).__name__}; every text must be a string")
