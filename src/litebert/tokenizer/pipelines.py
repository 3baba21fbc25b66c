"""Pipelines of the tokenizers library for ALBERT's two kinds of vocabularies.

The English models use SentencePiece unigram, the Chinese ones WordPiece. Both are saved as `tokenizer.json`, which
defines the ids.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from litebert.tokenizer.spiece import USER_DEFINED, SentencePieceModel

UNIGRAM_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
WORDPIECE_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}

# The characters at which Python's str.split() splits, as Google's code does; the regex \s is narrower.
_WHITE_SPACE = r"[\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"

# Control characters that SentencePiece's compiled rules delete.
_CONTROL = r"[\x{1}-\x{8}\x{e}-\x{1b}\x{7f}\x{8f}\x{9f}]"

# The blocks of accents of Latin, Greek and Cyrillic letters. Combining marks of other scripts are vowels and tones
# (Hindi, Thai, Arabic), which vocabularies trained here keep.
_ACCENTS = r"[\x{300}-\x{36f}\x{1ab0}-\x{1aff}\x{1dc0}-\x{1dff}\x{20d0}-\x{20ff}\x{fe20}-\x{fe2f}]"

# Characters that the Chinese vocabulary of 21,128 tokens lacks, and their substitutes in it.
PUNCTUATION_FOLDS = {"“": '"', "”": '"', "‘": "'", "’": "'", "…": "...", "—": "-"} | {
    chr(wide): chr(wide - 0xFEE0)
    for wide in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))  # ０-９ Ａ-Ｚ ａ-ｚ
}


def google_normalizer(charsmap: bytes, lowercase: bool, keep_accents: bool) -> normalizers.Normalizer:
    """The normalisation of Google's ALBERT code, then the rules compiled into its SentencePiece model."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(_WHITE_SPACE), " ")]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining_character_class()), "")]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if charsmap:
        # Precompiled deletes these too, but at the start of a text it then shifts all offsets.
        steps += [normalizers.Replace(Regex(_CONTROL), ""), normalizers.Precompiled(charsmap)]
    # The compiled rules turn some characters into spaces, so repeated and outer spaces are removed after them.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def litebert_normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """Normalisation of vocabularies trained here: the same on Latin script, and safe for every other script."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(_WHITE_SPACE), " "),
        normalizers.Nmt(),
        normalizers.NFKD(),
    ]
    if strip_accents:
        steps.append(normalizers.Replace(Regex(_ACCENTS), ""))
    if lowercase:
        steps.append(normalizers.Lowercase())
    steps.append(normalizers.NFC())  # Hangul and kana back to one character per syllable
    # A free-standing accent decomposes into a space and a mark, so repeated and outer spaces are removed last.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def unigram_pipeline(model: SentencePieceModel, normalizer: normalizers.Normalizer) -> Tokenizer:
    """A tokenizer that splits normalised text as sentencepiece does with the same model."""
    vocabulary = list(zip(model.pieces, model.scores, strict=True))
    tokenizer = Tokenizer(
        models.Unigram(vocabulary, unk_id=model.pieces.index(UNIGRAM_SPECIALS["unk"]), byte_fallback=False)
    )
    tokenizer.normalizer = normalizer
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    symbols = model.pieces_of_type(USER_DEFINED)
    if symbols:
        # sentencepiece never joins these with their neighbours; as added tokens they would lose the preceding space
        longest_first = sorted(symbols, key=len, reverse=True)
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return _with_special_tokens(tokenizer, UNIGRAM_SPECIALS)


def wordpiece_pipeline(
    vocabulary: dict[str, int],
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    fold_punctuation: bool = False,
) -> Tokenizer:
    """BERT's WordPiece: every Chinese character is a word."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=WORDPIECE_SPECIALS["unk"]))
    tokenizer.normalizer = wordpiece_normalizer(vocabulary, lowercase, strip_accents, fold_punctuation)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return _with_special_tokens(tokenizer, WORDPIECE_SPECIALS)


def wordpiece_normalizer(
    vocabulary: dict[str, int], lowercase: bool, strip_accents: bool | None, fold_punctuation: bool
) -> normalizers.Normalizer:
    """BERT's normalisation, optionally after folding characters that the vocabulary lacks."""
    bert = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    if not fold_punctuation:
        return bert
    return normalizers.Sequence(
        [
            *(
                normalizers.Replace(wide, narrow)
                for wide, narrow in PUNCTUATION_FOLDS.items()
                if wide not in vocabulary or wide.isalnum()
            ),
            bert,
        ]
    )


def accent_normalizer(strip_accents: bool) -> normalizers.Normalizer:
    """Strips accents before BERT's normalisation, which would also strip vowel marks, such as those of Hindi."""
    accents = [normalizers.Replace(Regex(_ACCENTS), "")] if strip_accents else []
    return normalizers.Sequence([normalizers.NFD(), *accents, normalizers.NFC()])


def metaspace_at_start_only(pipeline: str) -> str:
    """A `tokenizer.json` whose Metaspace step adds a space only at the start of a text.

    By default it adds one after every added word too. Leading spaces are then no longer stripped, as each piece of text
    between added words is normalised by itself.
    """
    content = json.loads(pipeline)
    normalizer, pre_tokenizer = content["normalizer"] or {}, content["pre_tokenizer"] or {}
    if "Metaspace" not in {part.get("type") for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer])}:
        return pipeline
    for part in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "first"
    for part in normalizer.get("normalizers", [normalizer]):
        if part.get("type") == "Strip":
            part["strip_left"] = False
    return json.dumps(content, ensure_ascii=False)


def _with_special_tokens(tokenizer: Tokenizer, specials: dict[str, str]) -> Tokenizer:
    """Add the templates `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`, and recognise special tokens in texts."""
    tokenizer.add_special_tokens(
        # the mask includes the space before it: the token of "a [MASK]" is one mask, not a space and a mask
        [AddedToken(token, lstrip=role == "mask", normalized=False, special=True) for role, token in specials.items()]
    )
    cls, sep = specials["cls"], specials["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer


@cache
def _combining_character_class() -> str:
    """A regex character class of all characters with a combining class, which Google's code strips."""
    ranges: list[list[int]] = []
    for point in range(0x110000):
        if unicodedata.combining(chr(point)):
            if ranges and ranges[-1][1] == point - 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"
