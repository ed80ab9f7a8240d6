"""Pre-tokenizers, which split text before tokens are merged, by their name in `tokenizer.ggml.pre`.

Each row states what the `tokenizer.json` of that model family contains.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_META = "▁"

ASSUMED = "default"
"""The name that llama.cpp writes for a tokenizer that it does not know; older files omit it."""

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)

_SEED = _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _TAIL
_EXAONE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u30ff]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL,
)
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c88}\x{2cf2}-\x{2d2d}"
    r"\x{a790}-\x{a7fa}\x{ab30}-\x{ab68}\x{10570}-\x{105bc}\x{16e40}-\x{1df1e}]]"
)
"""Cased letters, without those that Unicode had not when the pattern of DeepSeek was written."""
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?{_CASED}+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]")
_NOT_HAN_UPPER = _UPPER.replace("]", r"&&[^\p{Han}]]")
_NOT_HAN_LOWER = _LOWER.replace("]", r"&&[^\p{Han}]]")
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_ENDINGS}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_ENDINGS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
)

_GPT2: Mapping[str, Any] = MappingProxyType(
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
)


def _split(*patterns: str) -> dict[str, Any]:
    """Return the step that splits text by each pattern in turn."""
    return {
        "type": "Sequence",
        "pretokenizers": [
            *(
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": False,
                }
                for pattern in patterns
            ),
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            },
        ],
    }


def _single_digits() -> dict[str, Any]:
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, dict(_GPT2)]}


@dataclass(frozen=True)
class Pretokenizer:
    """One way to split text.

    Attributes:
        steps: The pre-tokenizer, as JSON.
        normalizer: The normalizer, as JSON, or None.
        ignores_merges: Whether a split that is itself a token becomes that token without merging.
        adds_bos: Whether encoding adds the BOS token, unless the metadata says otherwise.
    """

    steps: Mapping[str, Any]
    normalizer: Mapping[str, Any] | None = None
    ignores_merges: bool = False
    adds_bos: bool = False


def _rows() -> dict[str, Pretokenizer]:
    gpt2 = Pretokenizer(dict(_GPT2))
    llama3 = Pretokenizer(_split(_LLAMA3), ignores_merges=True, adds_bos=True)
    qwen2 = Pretokenizer(_split(_QWEN2), {"type": "NFC"})
    plain = Pretokenizer(_split(_QWEN2))
    thirds = Pretokenizer(_split(_LLAMA3))
    digits = Pretokenizer(_single_digits())
    tekken = Pretokenizer(_split(_TEKKEN), ignores_merges=True, adds_bos=True)
    return {
        ASSUMED: gpt2,
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "trillion"), gpt2),
        **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "jais", "granite-docling"), gpt2),
        **dict.fromkeys(("jina-es", "jina-de", "jina-v2-es", "jina-v2-de"), gpt2),
        **dict.fromkeys(("roberta-bpe", "jina-v1-en"), gpt2),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), llama3),
        **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "midm-2.0"), llama3),
        **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe", "glm4"), thirds),
        **dict.fromkeys(
            ("gpt-4o", "llama4", "minimax-m2", "kanana2"), Pretokenizer(_split(_O200K))
        ),
        "modern-bert": Pretokenizer(dict(_GPT2), {"type": "NFC"}),
        "qwen35": Pretokenizer(_split(_QWEN35), {"type": "NFC"}),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), qwen2),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), digits),
        **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), digits),
        **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "megrez"), plain),
        **dict.fromkeys(
            ("deepseek-v3", "hunyuan-dense", "joyai-llm"), Pretokenizer(_split(*_DEEPSEEK3))
        ),
        "deepseek-llm": Pretokenizer(_split(*_DEEPSEEK)),
        "deepseek-coder": Pretokenizer(_split(*_DEEPSEEK_CODER)),
        "exaone-moe": Pretokenizer(_split(_EXAONE)),
        "falcon": Pretokenizer(_split(*_FALCON)),
        "kimi-k2": Pretokenizer(_split(_KIMI)),
        "seed-coder": Pretokenizer(_split(_SEED)),
        "tekken": tekken,
    }


PRETOKENIZERS: Mapping[str, Pretokenizer] = MappingProxyType(_rows())


def sentencepiece_parts(
    *, prefix: bool, charsmap: bytes = b"", removes_spaces: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the normalizer and the decoder of a SentencePiece vocabulary, as JSON.

    Args:
        prefix: Whether to put a space before a text.
        charsmap: The table of characters that are replaced first; empty for none.
        removes_spaces: Whether spaces around a text, and all but one of several, are removed.
    """
    steps: list[dict[str, Any]] = []
    if charsmap:
        encoded = base64.b64encode(charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if removes_spaces:
        steps += [
            # `Strip` would remove line breaks too.
            {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    if prefix:
        steps.append({"type": "Prepend", "prepend": _META})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _META})
    back = {"type": "Replace", "pattern": {"String": _META}, "content": " "}
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return (
        {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else steps[0],
        {"type": "Sequence", "decoders": decoders},
    )
