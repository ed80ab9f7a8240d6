"""Vectors of single steps of tokenizers: what each makes of texts of all kinds of characters.

Of models and added tokens they have the ids of a tokenizer that has little else.

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
_PIECES = (
    *("a", "sa", "as", "A", "1", "σ", "é", "½", "_", "ⓐ", "☃", "ß", "'s", "'S", "'ſ", "'LL"),
    *("'ll", "\u212a", "#", "##a", "<s>", "<S>", "<1>", "-", " ", "  ", "\n", "\u3000"),
    *("\u200d", "\u0301"),
)
"""Words, parts of them, added tokens, and what may stand beside these."""


def texts() -> list[str]:
    """Return random texts."""
    chance = random.Random(33)
    notable = ["".join(chance.choices(_NOTABLE, k=chance.randint(1, 9))) for _ in range(90)]
    kinds = [chance.sample(_RANGES, 3) for _ in range(60)]
    mixed = [
        "".join(chr(chance.randrange(*chance.choice(kind))) for _ in range(8)) for kind in kinds
    ]
    return [*notable, *mixed, "ΑΣ ΣΑΣ", "Straße İstanbul ẞ", "$& $1 $$", " a \n b "]


def words() -> list[str]:
    """Return random texts of pieces that the vocabularies of `tokenizers` have or lack."""
    chance = random.Random(20)
    mixed = ["".join(chance.choices(_PIECES, k=chance.randint(1, 7))) for _ in range(90)]
    return [*mixed, "☃a sa", " a", "   ", "a      a  "]


def tokenizers() -> dict[str, Any]:
    """Return tokenizers for what models do with unknown text, and for added tokens."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    def numbered(*tokens: str) -> dict[str, int]:
        return {token: at for at, token in enumerate(("<unk>", *tokens))}

    def split(model: Any) -> Any:
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def with_added(**options: bool) -> Any:
        tokenizer = split(models.BPE(numbered(*"sa1_'-"), [], unk_token="<unk>"))
        tokens = ("<s>", "a", "'s", "<1>")
        tokenizer.add_tokens([AddedToken(token, **options) for token in tokens])
        return tokenizer

    def normal(*steps: Any, pre: Any = None) -> Any:
        tokenizer = Tokenizer(models.BPE(letters, merges, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence(list(steps))
        tokenizer.pre_tokenizer = pre or pre_tokenizers.WhitespaceSplit()
        return tokenizer

    pieces = numbered(*"sa1é'#", "sa", "##a", "##s", "##1", "##as", "##'", "##☃", "☃")
    letters = numbered(*"sa1é'", "sa", "as", "☃a")
    merges = [("s", "a"), ("a", "s")]
    strip, first = normalizers.Strip(), pre_tokenizers.Metaspace("1", prepend_scheme="first")
    spaces = split(models.WordLevel(numbered("a"), unk_token="<unk>"))
    spaces.add_tokens([AddedToken("  ", lstrip=True, rstrip=True)])
    return {
        "Prepend behind Strip": normal(strip, normalizers.Prepend("a")),
        "Metaspace, first, behind Strip": normal(strip, pre=first),
        "WordPiece": split(models.WordPiece(pieces, unk_token="<unk>")),
        "WordPiece, short words": split(
            models.WordPiece(pieces, unk_token="<unk>", max_input_chars_per_word=4)
        ),
        "WordLevel": split(models.WordLevel(numbered("sa", "a", "☃"), unk_token="<unk>")),
        "BPE": split(models.BPE(letters, merges, unk_token="<unk>")),
        "BPE, fused": split(models.BPE(letters, merges, unk_token="<unk>", fuse_unk=True)),
        "BPE, left out": split(models.BPE(letters, merges)),
        "BPE, whole words": split(models.BPE(letters, merges, ignore_merges=True)),
        "added tokens": with_added(),
        "added tokens, spaces": spaces,
        "added tokens, single words": with_added(single_word=True),
        "added tokens, stripped left": with_added(single_word=True, lstrip=True),
        "added tokens, stripped right": with_added(rstrip=True),
    }


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
        "Replace, any case": normalizers.Replace(Regex("(?i:sa|k)"), "x"),
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
        **{
            f"Split, {pattern}": pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in (r"(?i:'S|'ll|k|-?a_)", r"'(?i:[sDmt]|ll)|\p{L}+")
        },
        **{
            f"Split, merged with {text}": pre_tokenizers.Split(text, "merged_with_previous")
            for text in (" ", "s", "#", "σ")
        },
        "Split, removed text": pre_tokenizers.Split("s1", "removed"),
        "Split, removed groups": pre_tokenizers.Split(Regex(r"(a|s)1?|[(#]|\("), "removed"),
        **{
            f"Metaspace, {scheme}": pre_tokenizers.Metaspace(prepend_scheme=scheme)
            for scheme in ("always", "first", "never")
        },
        "Metaspace, whole": pre_tokenizers.Metaspace(split=False),
        "Metaspace, #": pre_tokenizers.Metaspace("#"),
        "Metaspace, ^": pre_tokenizers.Metaspace("^"),
        "Whitespace": pre_tokenizers.Whitespace(),
        "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
    }
    given = [*texts(), *words()]
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
        "words": words(),
        "tokenizers": {
            name: {
                "step": json.loads(tokenizer.to_str()),
                "made": [tokenizer.encode(text).ids for text in words()],
            }
            for name, tokenizer in tokenizers().items()
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
