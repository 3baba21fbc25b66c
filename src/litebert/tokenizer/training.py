"""Training vocabularies."""

from __future__ import annotations

import heapq
import io
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import normalizers, trainers

from litebert.errors import ConfigError, DataError, require_extra
from litebert.tokenizer.core import Tokenizer
from litebert.tokenizer.pipelines import (
    UNIGRAM_SPECIALS,
    WORDPIECE_SPECIALS,
    accent_normalizer,
    litebert_normalizer,
    unigram_pipeline,
    wordpiece_pipeline,
)
from litebert.tokenizer.spiece import parse_spiece

USER_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]  # as in ALBERT: always tokens by themselves
MAX_SAMPLED_CHARACTERS = 20_000_000  # of a uniform sample of lines: bounds memory and time
MAX_LINE_CHARACTERS = 1_000  # sentencepiece drops longer lines, so they are split at spaces


def train_unigram(
    lines: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    seed: int = 0,
) -> Tokenizer:
    """Train a SentencePiece unigram vocabulary with `<pad> <unk> [CLS] [SEP] [MASK]` at ids 0 to 4."""
    sentencepiece = require_extra("sentencepiece", "train")
    _check_vocab_size(vocab_size, minimum=64)
    normalizer = litebert_normalizer(lowercase, strip_accents)
    buffer = io.BytesIO()
    # not sentencepiece's own sampling, whose seed cannot be set
    sample = _sample_lines(_split_long_lines(_drop_blank(lines)), seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_split_long_lines(normalizer.normalize_str(line) for line in sample),
            model_writer=buffer,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # a small corpus gives a smaller vocabulary instead of an error
            normalization_rule_name="identity",
            character_coverage=0.99995,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=UNIGRAM_SPECIALS["pad"],
            unk_piece=UNIGRAM_SPECIALS["unk"],
            control_symbols=[UNIGRAM_SPECIALS[role] for role in ("cls", "sep", "mask")],
            user_defined_symbols=USER_SYMBOLS,
            minloglevel=2,
        )
    except RuntimeError as error:  # sentencepiece's only exception type
        reason = str(error).split(") ")[-1] or "no reason given"
        raise DataError(
            f"vocab_size={vocab_size}: sentencepiece could not train on this text: {reason}; "
            "give more text or a smaller --vocab-size"
        ) from error
    model = buffer.getvalue()
    return Tokenizer(
        unigram_pipeline(parse_spiece(model, "the trained model"), normalizer), UNIGRAM_SPECIALS, spiece=model
    )


def train_wordpiece(
    lines: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    seed: int = 0,
) -> Tokenizer:
    """Train a WordPiece vocabulary with `[PAD] [UNK] [CLS] [SEP] [MASK]` at ids 0 to 4."""
    _check_vocab_size(vocab_size, minimum=64)
    specials = list(WORDPIECE_SPECIALS.values())

    def pipeline(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
        tokenizer = wordpiece_pipeline(vocabulary, lowercase=lowercase, strip_accents=False, fold_punctuation=True)
        tokenizer.normalizer = normalizers.Sequence([accent_normalizer(strip_accents), tokenizer.normalizer])
        return tokenizer

    blank = pipeline({token: number for number, token in enumerate(specials)})
    sample = [
        blank.normalizer.normalize_str(line) for line in _sample_lines(_split_long_lines(_drop_blank(lines)), seed)
    ]
    blank.normalizer = None  # the sample is normalised already
    counts: Counter[str] = Counter()
    for line in sample:
        counts.update(line)
    limit = max(50, vocab_size * 4 // 5 - len(specials))  # Chinese has thousands of characters
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = [character for character in frequent if not character.isspace()][:limit]

    def train(size: int, special_tokens: list[str]) -> dict[str, int]:
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=special_tokens,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        blank.train_from_iterator(sample, trainer)
        return dict(blank.get_vocab())

    # The library numbers continuation characters (##a) in random order and breaks ties between pairs by number. So a
    # first run, too small for any merge, finds the characters, and the second gets them in sorted order.
    letters = sorted(set(train(0, specials)) - set(specials))
    if not letters:
        raise DataError("the text holds no words to learn a vocabulary from; give --input files with text")
    return Tokenizer(pipeline(train(vocab_size, specials + letters)), WORDPIECE_SPECIALS)


def _check_vocab_size(vocab_size: int, minimum: int) -> None:
    if not minimum <= vocab_size <= 1_000_000:
        raise ConfigError(f"vocab_size={vocab_size} must lie between {minimum} and 1,000,000; ALBERT uses 30000")


def _sample_lines(lines: Iterable[str], seed: int) -> list[str]:
    """A uniform sample of lines, SAMPLED_CHARACTERS of text at most, in their order.

    Reservoir sampling by random priorities: while there is too much text, the line of the highest one is dropped.
    """
    rng = random.Random(seed)
    kept: list[tuple[float, int, str]] = []  # a heap: the line of the highest priority, negated, comes first
    size = 0
    for number, line in enumerate(lines):
        size += len(line)
        heapq.heappush(kept, (-rng.random(), number, line))
        while size > MAX_SAMPLED_CHARACTERS and len(kept) > 1:
            size -= len(heapq.heappop(kept)[2])
    return [line for _, _, line in sorted(kept, key=lambda entry: entry[1])]


def _drop_blank(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if line.strip())


def _split_long_lines(lines: Iterable[str]) -> Iterator[str]:
    """Split long lines at the last space before the limit."""
    for line in lines:
        while len(line) > MAX_LINE_CHARACTERS:
            at = line.rfind(" ", 1, MAX_LINE_CHARACTERS)
            at = at if at > 0 else MAX_LINE_CHARACTERS
            yield line[:at]
            line = line[at:]
        yield line
