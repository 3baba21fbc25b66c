"""Text in, new vocabulary out."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from tokenizers import normalizers, trainers

from litebert.errors import ConfigError, DataError, require_extra
from litebert.tokenizer.core import Tokenizer
from litebert.tokenizer.pipelines import (
    UNIGRAM_SPECIALS,
    WORDPIECE_SPECIALS,
    litebert_normalizer,
    marks_normalizer,
    unigram_pipeline,
    wordpiece_pipeline,
)
from litebert.tokenizer.spiece import parse_spiece

USER_SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]  # ALBERT's: always pieces of their own
SAMPLED_LINES = (
    1_000_000  # more lines do not change a vocabulary; a uniform sample keeps memory flat at any corpus size
)
LINE_LIMIT = 1_000  # sentencepiece drops longer lines, so paragraphs are cut at spaces before it sees them


def train_unigram(
    lines: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    seed: int = 0,
) -> Tokenizer:
    """Train ALBERT's kind of vocabulary: SentencePiece unigram with `<pad> <unk> [CLS] [SEP] [MASK]` at ids 0 to 4."""
    sentencepiece = require_extra("sentencepiece", "train")
    _check_size(vocab_size, minimum=64)
    normalizer = litebert_normalizer(lowercase, strip_accents)
    written = io.BytesIO()
    sentencepiece.set_random_generator_seed(seed)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_short(normalizer.normalize_str(line) for line in _not_empty(lines)),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # a small corpus gives fewer pieces instead of failing
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
            input_sentence_size=SAMPLED_LINES,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except RuntimeError as error:  # sentencepiece's only error, with its reason in the text
        reason = str(error).split(") ")[-1] or "no reason given"
        raise DataError(
            f"vocab_size={vocab_size}: sentencepiece could not train on this text: {reason}; "
            "give more text or a smaller --vocab-size"
        ) from error
    model = written.getvalue()
    return Tokenizer(
        unigram_pipeline(parse_spiece(model, "the trained model"), normalizer), UNIGRAM_SPECIALS, spiece=model
    )


def train_wordpiece(
    lines: Iterable[str], vocab_size: int, *, lowercase: bool = True, strip_accents: bool = True
) -> Tokenizer:
    """Train the Chinese models' kind of vocabulary: WordPiece with `[PAD] [UNK] [CLS] [SEP] [MASK]` at ids 0 to 4."""
    _check_size(vocab_size, minimum=64)
    specials = list(WORDPIECE_SPECIALS.values())
    blank = wordpiece_pipeline(
        {token: number for number, token in enumerate(specials)},
        lowercase=lowercase,
        strip_accents=False,
        fold_punctuation=True,
    )
    blank.normalizer = normalizers.Sequence([marks_normalizer(strip_accents), blank.normalizer])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        limit_alphabet=max(50, vocab_size * 4 // 5 - len(specials)),  # thousands of Chinese characters are normal
        show_progress=False,
    )
    blank.train_from_iterator(_not_empty(lines), trainer)
    if blank.get_vocab_size() <= len(specials):
        raise DataError("the text holds no words to learn a vocabulary from; give --input files with text")
    return Tokenizer(blank, WORDPIECE_SPECIALS)


def _check_size(vocab_size: int, minimum: int) -> None:
    if not minimum <= vocab_size <= 1_000_000:
        raise ConfigError(f"vocab_size={vocab_size} must lie between {minimum} and 1,000,000; ALBERT uses 30000")


def _not_empty(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if line.strip())


def _short(lines: Iterable[str]) -> Iterator[str]:
    """Cut long lines at the last space before the limit."""
    for line in lines:
        while len(line) > LINE_LIMIT:
            at = line.rfind(" ", 1, LINE_LIMIT)
            at = at if at > 0 else LINE_LIMIT
            yield line[:at]
            line = line[at:]
        yield line
