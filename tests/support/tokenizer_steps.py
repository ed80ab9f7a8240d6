"""Vectors of single steps of tokenizers: what each makes of texts of all kinds of characters.

`python -m support.tokenizer_steps` writes them again (with `tests` in PYTHONPATH). The texts of
`text_vectors` are written by people and hold few of the characters on which libraries differ.
"""

from __future__ import annotations

import json
import random
from typing import Any

from support.commands import ROOT
from support.text_vectors import lines

FILE = ROOT / "tests" / "data" / "vectors" / "tokenizer_steps.json"

_RANGES = (
    (32, 127), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x3FB), (0x400, 0x530), (0x621, 0x670),
    (0x904, 0x940), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00),
    (0xFB00, 0xFB07), (0x1F300, 0x1F320), (0, 32), (0x1E00, 0x2000), (0x2B740, 0x2B820),
)  # fmt: skip
_NOTABLE = "\x85\ufeff\u180e\u200c\u200d\x1c\x1f²½Ⅰⓐ‿_ \xa0\u2028\u3000aAΣσ1's\n\r$#▁ \n"
"""Spaces, letters and numbers of which there is more than one idea."""


def texts() -> list[str]:
    """Return random texts."""
    chance = random.Random(33)
    notable = ["".join(chance.choices(_NOTABLE, k=chance.randint(1, 9))) for _ in range(90)]
    kinds = [chance.sample(_RANGES, 3) for _ in range(60)]
    mixed = [
        "".join(chr(chance.randrange(*chance.choice(kind))) for _ in range(8)) for kind in kinds
    ]
    return [*notable, *mixed, "ΑΣ ΣΑΣ", "Straße İstanbul ẞ", "$& $1 $$", " a \n b "]


def made() -> dict[str, Any]:
    """Return the texts, and for each step its description and what it makes of them."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    pattern = r"\w+|[^\w\s]+"
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    normal = {
        "BertNormalizer": normalizers.BertNormalizer(),
        "BertNormalizer, cased": normalizers.BertNormalizer(lowercase=False),
        "Lowercase": normalizers.Lowercase(),
        "Replace": normalizers.Replace("a", "$&x"),
        "Strip": normalizers.Strip(),
        "Strip, right": normalizers.Strip(left=False),
        "StripAccents": normalizers.StripAccents(),
    }
    pre = {
        "BertPreTokenizer": pre_tokenizers.BertPreTokenizer(),
        "ByteLevel": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "Digits": pre_tokenizers.Digits(individual_digits=False),
        "Digits, single": pre_tokenizers.Digits(individual_digits=True),
        "Punctuation": pre_tokenizers.Punctuation(),
        "Split": split,
        "Whitespace": pre_tokenizers.Whitespace(),
        "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
    }
    given = texts()
    return {
        "texts": given,
        "normalizers": {
            name: {"step": _description(step), "made": [step.normalize_str(text) for text in given]}
            for name, step in normal.items()
        },
        "pre_tokenizers": {
            name: {
                "step": _description(step),
                "made": [[word for word, _ in step.pre_tokenize_str(text)] for text in given],
            }
            for name, step in pre.items()
        },
    }


def _description(step: Any) -> Any:
    return json.loads(step.__getstate__())


def read() -> dict[str, Any]:
    """Return the vectors of the file."""
    vectors: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return vectors


if __name__ == "__main__":
    FILE.write_text(lines(made(), 2) + "\n", encoding="utf-8")
