"""Which script characters belong to, where that decides how text is cut or joined."""

from __future__ import annotations

import re

# what stands between the brackets of a regular expression
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"

# Thai to Tibetan, Burmese, Khmer, kana, Chinese characters: no spaces between words.
UNSPACED_SCRIPTS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
UNSPACED_CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")


def is_mostly(characters: str, text: str) -> bool:
    """Whether more than half of the letters of a text are among these, `HAN` for example."""
    letters = [character for character in text if character.isalpha()]
    return 2 * len(re.findall(f"[{characters}]", "".join(letters))) > len(letters)
