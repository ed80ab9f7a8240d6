"""Pre-tokenizers, which split text before tokens are merged, by their name in `tokenizer.ggml.pre`.

Each row states what the `tokenizer.json` of that model family contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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

_GPT2: Mapping[str, Any] = MappingProxyType(
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
)


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
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
    thirds = Pretokenizer(_split(_LLAMA3))
    digits = Pretokenizer(_single_digits())
    tekken = Pretokenizer(_split(_TEKKEN), ignores_merges=True, adds_bos=True)
    return {
        ASSUMED: gpt2,
        **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), gpt2),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), llama3),
        **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe", "glm4"), thirds),
        **dict.fromkeys(("gpt-4o", "llama4"), Pretokenizer(_split(_O200K))),
        "qwen35": Pretokenizer(_split(_QWEN35), {"type": "NFC"}),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), qwen2),
        **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), digits),
        "tekken": tekken,
    }


PRETOKENIZERS: Mapping[str, Pretokenizer] = MappingProxyType(_rows())


def sentencepiece_parts(*, prefix: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the normalizer and the decoder of a SentencePiece vocabulary, as JSON.

    Args:
        prefix: Whether to put a space before a text.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if not prefix:
        return replace, {"type": "Sequence", "decoders": decoders}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    prepend = {"type": "Prepend", "prepend": "▁"}
    return (
        {"type": "Sequence", "normalizers": [prepend, replace]},
        {"type": "Sequence", "decoders": [*decoders, strip]},
    )
