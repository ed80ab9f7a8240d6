"""Whether a text gets a space in front, where tokenizer_config.json says it for its class.

Some classes of transformers build these steps from `add_prefix_space` and not from tokenizer.json;
others do not read the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BYTE_LEVEL = ("GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer")
_SENTENCEPIECE = ("LlamaTokenizer", "CodeLlamaTokenizer")
_NESTED = ("pretokenizers", "normalizers", "decoders")
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def set_prefix(tokenizer: dict[str, Any], settings: Mapping[str, Any]) -> bool:
    """Add or remove the space in front, and return whether anything was changed.

    Args:
        tokenizer: Content of tokenizer.json.
        settings: Content of tokenizer_config.json.
    """
    stated = settings.get("add_prefix_space")
    name = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    if not isinstance(stated, bool):
        return False
    if name in _BYTE_LEVEL:
        return _set_byte_level(tokenizer, stated)
    return name in _SENTENCEPIECE and _set_sentencepiece(tokenizer, stated)


def _set_byte_level(tokenizer: Mapping[str, Any], stated: bool) -> bool:
    steps = [step for step in _steps(tokenizer.get("pre_tokenizer")) if _is(step, "ByteLevel")]
    changed = [step for step in steps if step.get("add_prefix_space") is not stated]
    for step in changed:
        step["add_prefix_space"] = stated
    return bool(changed)


def _set_sentencepiece(tokenizer: dict[str, Any], stated: bool) -> bool:
    """Set the scheme of a pre-tokenizer; other files say by a normalizer what is in front."""
    steps = [step for step in _steps(tokenizer.get("pre_tokenizer")) if _is(step, "Metaspace")]
    changed = [step for step in steps if (step.get("prepend_scheme") != "never") is not stated]
    for step in changed:
        step["prepend_scheme"] = "first" if stated else "never"
    prepends = [step for step in _steps(tokenizer.get("normalizer")) if _is(step, "Prepend")]
    if prepends and not stated:
        tokenizer["normalizer"] = _without(tokenizer["normalizer"], "Prepend")
        changed += prepends
    if changed:
        decoder = _without(tokenizer.get("decoder"), "Strip")
        if stated and isinstance(decoder, dict) and isinstance(decoder.get("decoders"), list):
            decoder = {**decoder, "decoders": [*decoder["decoders"], _STRIP]}
        tokenizer["decoder"] = decoder
    return bool(changed)


def _without(step: Any, kind: str) -> Any:
    """Return a step, or a sequence of them, without the steps of a kind; None if none is left."""
    if _is(step, kind):
        return None
    key = next((key for key in _NESTED if isinstance(step, dict) and key in step), None)
    if key is None or not isinstance(step[key], list):
        return step
    inner = [_without(each, kind) for each in step[key]]
    return {**step, key: [each for each in inner if each is not None]}


def _steps(step: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer; sequences can be nested."""
    if not isinstance(step, dict):
        return
    yield step
    for key in _NESTED:
        inner = step.get(key)
        for each in inner if isinstance(inner, list) else ():
            yield from _steps(each)


def _is(step: Any, kind: str) -> bool:
    return isinstance(step, dict) and step.get("type") == kind
