"""Character classes of scripts."""

from __future__ import annotations

import re

# for use within [] of a regular expression
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"

# Scripts without spaces between words: Thai to Tibetan, Burmese, Khmer, kana, Chinese characters.
UNSPACED_SCRIPTS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
UNSPACED_CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")


def is_mostly(script: str, text: str) -> bool:
    """Are more than half of the letters of a text in a character class such as `HAN`?"""
    letters = [character for character in text if character.isalpha()]
    return 2 * len(re.findall(f"[{script}]", "".join(letters))) > len(letters)
