"""Text cleaning for pre-training: Chinese script conversion, removal of personal data, sentence splitting."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from litebert.errors import ConfigError, require_extra

SentenceSplitting = Literal["split", "lines"]
ChineseScript = Literal["keep", "simplified", "traditional"]

_OPENCC = {"simplified": "t2s", "traditional": "s2t"}

_EDGE, _END = r"(?<![\w.+-])", r"(?![\w-])"  # ASCII only: Chinese characters may follow without a space
_EMAIL = re.compile(_EDGE + r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}", re.ASCII)
_CARD = re.compile(_EDGE + r"\d(?:[ -]?\d){12,18}" + _END, re.ASCII)
_IDENTITY = re.compile(
    _EDGE
    + r"(?:\d{6}(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx]"  # China, with the date of birth
    + r"|\d{3}-\d{2}-\d{4}"  # USA
    + r"|[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?)"  # IBAN
    + _END,
    re.ASCII,
)
_PHONE = re.compile(
    _EDGE
    + r"(?:\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}"  # with a country code
    + r"|\(\d{2,4}\) ?\d{3,4}[ .-]?\d{3,4}|\d{3}[ .-]\d{3}[ .-]\d{4}"  # with an area code
    + r"|1[3-9]\d{9}|1[3-9]\d[ -]\d{4}[ -]\d{4}|0\d{2,3}-\d{7,8})"  # China
    + _END,
    re.ASCII,
)
_MAYBE_PERSONAL = re.compile(r"\d[\d ().-]{5,}\d|@|[A-Z]{2}\d{2}", re.ASCII)


def scrub_personal_data(text: str) -> str:
    """Replace e-mail addresses, telephone, card and identity numbers by [email], [phone] and [number]."""
    if not _MAYBE_PERSONAL.search(text):  # one search is cheaper than four
        return text
    text = _EMAIL.sub("[email]", text)
    text = _IDENTITY.sub("[number]", text)
    text = _CARD.sub(lambda match: "[number]" if _is_card_number(match[0]) else match[0], text)
    return _PHONE.sub("[phone]", text)


def _is_card_number(number: str) -> bool:
    """Luhn checksum: valid for every card number and for one in ten other numbers."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def script_converter(script: ChineseScript) -> Callable[[str], str] | None:
    """A function that converts to simplified or traditional characters with OpenCC."""
    if script == "keep":
        return None
    converter = require_extra("opencc", "chinese").OpenCC(_OPENCC[script])
    return lambda text: str(converter.convert(text))


def sentence_splitter(how: SentenceSplitting, language: str) -> Callable[[str], list[str]]:
    """A function that splits a document into sentences. A line break always ends one; no character is lost.

    `language` selects the abbreviations that end no sentence (`Dr.`, `z.B.`); full stops of all scripts are known.
    """
    if how == "lines":
        return lambda document: document.split("\n")
    if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)?", language):
        raise ConfigError(f"language={language!r} must be a language code such as en, de or zh")
    segment = require_extra("sentencex", "train").segment

    def split(document: str) -> list[str]:
        return [sentence for line in document.split("\n") for sentence in segment(language, line)]

    return split
