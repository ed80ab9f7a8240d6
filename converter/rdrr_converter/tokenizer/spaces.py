"""Spaces that tokenizer_config.json puts in front of a text or removes from it.

Some classes of transformers build the steps for the space in front from `add_prefix_space` and
`legacy`, whatever tokenizer.json says; others do not read these settings. Every class reads
`clean_up_tokenization_spaces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rdrr_converter.tokenizer.steps import metaspace_steps

CLEANS_UP = "clean_up_tokenization_spaces"
_BYTE_LEVEL = ("GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer")
_LLAMA = "LlamaTokenizer"
_SENTENCEPIECE = (_LLAMA, "CodeLlamaTokenizer")
_ALL_FROM_FILE = (
    "ernie4_5 ernie4_5_moe flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe granite "
    "granitemoe granitemoehybrid granitemoeshared internlm2 internlm3 iquestcoder jamba kimi_k25 "
    "llava llava_next minimax_m2 ministral ministral3 mistral mistral3 mixtral nemotron olmo2 "
    "olmo3 olmo_hybrid persimmon phi3 phimoe pixtral smolvlm stablelm vipllava voxtral"
)
"""Types of models whose tokenizer.json is used as it is, whatever class the settings name."""

_EDITS = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Patterns of which cleaning up removes the spaces, in this order."""

_NESTED = ("pretokenizers", "decoders")
_WITH_SPACES = {"type": "WordPiece", "prefix": "\uffff\uffff", "cleanup": False}
"""A step that joins tokens with spaces, as no decoder at all does: no token has this prefix."""


def set_spaces(
    tokenizer: dict[str, Any], settings: Mapping[str, Any], config: Mapping[str, Any]
) -> bool:
    """Change the steps that add and remove spaces; return whether anything was changed.

    Args:
        tokenizer: Content of tokenizer.json.
        settings: Content of tokenizer_config.json.
        config: Content of config.json.
    """
    changed = False
    if config.get("model_type") not in _ALL_FROM_FILE.split():
        named = settings.get("tokenizer_class") or config.get("tokenizer_class")
        changed = _set_prefix(tokenizer, settings, str(named).removesuffix("Fast"))
    if cleans_up(tokenizer, settings):
        edits = [_replacement(pattern, pattern.replace(" ", "")) for pattern in _EDITS]
        first = tokenizer.get("decoder") or _WITH_SPACES
        tokenizer["decoder"] = {"type": "Sequence", "decoders": [first, {"type": "Fuse"}, *edits]}
        changed = True
    return changed


def cleans_up(tokenizer: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a decoded text is cleaned up, which transformers does not do to BPE."""
    is_bpe = _is_bpe(tokenizer.get("model"))
    forced = f"{CLEANS_UP}_for_bpe_even_though_it_will_corrupt_output"
    return bool(settings.get(CLEANS_UP)) and (not is_bpe or bool(settings.get(forced)))


def _set_prefix(tokenizer: dict[str, Any], settings: Mapping[str, Any], name: str) -> bool:
    stated = settings.get("add_prefix_space")
    if name in _BYTE_LEVEL and isinstance(stated, bool):
        return _set_byte_level(tokenizer, stated)
    parts = (tokenizer.get("pre_tokenizer"), tokenizer.get("decoder"))
    is_byte_level = any(_is(step, "ByteLevel") for part in parts for step in _steps(part))
    if name not in _SENTENCEPIECE or is_byte_level or not _is_bpe(tokenizer.get("model")):
        return False
    repeats = name == _LLAMA and bool(settings.get("legacy"))
    scheme = "always" if repeats else "first"
    steps = metaspace_steps("never" if stated is False else scheme)
    if name != _LLAMA:
        steps |= {"decoder": metaspace_steps("first")["decoder"]}
    changed = any(tokenizer.get(key) != step for key, step in steps.items())
    tokenizer |= steps
    return changed


def _set_byte_level(tokenizer: Mapping[str, Any], stated: bool) -> bool:
    steps = [step for step in _steps(tokenizer.get("pre_tokenizer")) if _is(step, "ByteLevel")]
    changed = [step for step in steps if step.get("add_prefix_space") is not stated]
    for step in changed:
        step["add_prefix_space"] = stated
    return bool(changed)


def _replacement(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _steps(step: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer; sequences can be nested."""
    if not isinstance(step, dict):
        return
    yield step
    for key in _NESTED:
        inner = step.get(key)
        for each in inner if isinstance(inner, list) else ():
            yield from _steps(each)


def _is_bpe(model: Any) -> bool:
    """Return whether a model is BPE; older files do not state the type."""
    return isinstance(model, dict) and model.get("type", "BPE") == "BPE" and "merges" in model


def _is(step: Any, kind: str) -> bool:
    return isinstance(step, dict) and step.get("type") == kind
