"""The supported architectures, one declarative file each, and the lookup by configuration.

To add an architecture, write its file and add its name to `_NAMES`
(docs/ADDING_AN_ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.options import suggestion

from rdrr_converter.architectures._aliases import ALIASES, FAMILIES, plain_name
from rdrr_converter.architectures._wrappers import within, wrapper_of
from rdrr_converter.architectures.base import (
    MASKED,
    SEQUENCE,
    TOKEN,
    ArchitectureRule,
    TensorRule,
    read_block,
)
from rdrr_converter.architectures.config import Config

__all__ = [
    "ARCHITECTURES",
    "ArchitectureRule",
    "Config",
    "TensorRule",
    "families_of",
    "find_architecture",
    "find_by_name",
    "read_block",
    "stated_names",
    "states_another_family",
]

_NAMES = [
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "sarvam_mla",
    "dots1",
    "ernie4_5_moe",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "glm4_moe",
    "solar_open",
    "gpt_oss",
    "glm4_moe_lite",
    "granitemoe",
    "granitemoeshared",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "llama",
    "llama4_text",
    "mamba2",
    "mistral",
    "ministral",
    "ministral3",
    "internlm3",
    "mixtral",
    "minimax_m2",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl",
    "qwen3_vl_moe",
    "seed_oss",
    "smollm3",
    "vaultgemma",
    "apertus",
    "arcee",
    "cwm",
    "ernie4_5",
    "exaone4",
    "exaone_moe",
    "glm",
    "glm4",
    "glm4v",
    "glm4v_moe",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "flex_olmo",
    "wedlm",
    "cohere",
    "cohere2",
    "falcon",
    "gpt2",
    "gpt_neox",
    "nemotron",
    "nemotron_h",
    "opt",
    "phi",
    "stablelm",
    "starcoder2",
    "iquestcoder",
    "granite_swa",
    "granite",
    "granitemoehybrid",
    "bert",
    "roberta",
    "distilbert",
    "mpnet",
    "nomic_bert",
    "modernbert",
    "jina_bert",
]
"""The names of the files. Granite and its hybrids come last: they can describe every Llama too, and
an export uses the first match."""


def _load(name: str) -> ArchitectureRule:
    """Return the constant of an architecture's file, which has its name in capital letters."""
    module = import_module(f"{__name__}.{name}")
    rule: ArchitectureRule = getattr(module, name.upper())
    return rule


ARCHITECTURES: tuple[ArchitectureRule, ...] = tuple(map(_load, _NAMES))

_HEADS = (SEQUENCE, TOKEN, MASKED)
_BODIES = ("ForCausalLM", "LMHeadModel", "Model", "ForConditionalGeneration")


def find_architecture(
    config: Mapping[str, Any], override: str | None = None, where: object = None
) -> ArchitectureRule:
    """Find the architecture of a checkpoint by its class, else by its `model_type`.

    Args:
        config: The checkpoint's `config.json`.
        override: Name, alias or class to use instead of the configuration's.
        where: The configuration's file, for messages.

    Raises:
        ConversionError: The configuration names no supported architecture.
        UsageError: `override` names no supported architecture.
    """
    if override is not None:
        rule = find_by_name(override)
        if rule is None:
            near = suggestion(override, [name for rule in ARCHITECTURES for name in _own(rule)])
            hint = f"{near} `rdrr architectures` lists all".strip()
            raise UsageError("unknown architecture", found=override, hint=hint)
        wrapper = next(filter(None, map(wrapper_of, stated_names(config))), None)
        return rule if wrapper is None else within(wrapper, rule)
    candidates = stated_names(config)
    inner = config.get("text_config")
    text_type = (inner if isinstance(inner, Mapping) else config).get("model_type")
    for name in candidates:
        rule = find_by_name(name, text_type)
        if rule is not None:
            return rule
    raise ConversionError(
        "unknown architecture",
        where=where,
        expected="one that `rdrr architectures` lists",
        found=_described(candidates, text_type) or "no architectures and no model_type",
        hint="a model that does not compute exactly the same as the one it is converted as gives "
        "wrong results",
    )


def stated_names(config: Mapping[str, Any]) -> list[str]:
    """Return the classes that a configuration states, or its `model_type` if it states none.

    If a class is stated, the model_type is ignored, because a classifier or a multimodal model has
    the same model_type as the plain language model.
    """
    classes, model_type = config.get("architectures"), config.get("model_type")
    names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    return names or ([model_type] if isinstance(model_type, str) else [])


def states_another_family(config: Mapping[str, Any], rule: ArchitectureRule) -> str | None:
    """Return the key with which a configuration names another architecture; None if it does not.

    The key is `model_type`, or `architectures` if there is no `model_type`. Transformers decides by
    the same two. A configuration with neither names no architecture.

    Args:
        config: The configuration of the text model.
        rule: The architecture as which the model is read.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        is_known = model_type == rule.text_type or _is_name_of(rule, model_type)
        return None if is_known else "model_type"
    listed = config.get("architectures")
    names = [name for name in (listed if isinstance(listed, list) else ()) if isinstance(name, str)]
    is_named = any(_is_name_of(rule, name) for name in names)
    return "architectures" if names and not is_named else None


def _is_name_of(rule: ArchitectureRule, name: str) -> bool:
    named = find_by_name(name)
    return named is not None and named.name == rule.name


def families_of(rule: ArchitectureRule) -> tuple[str, ...]:
    """Return the popular names of families that have an architecture, for `--arch`."""
    return FAMILIES.get(rule.name, ())


def find_by_name(name: str, text_type: object = None) -> ArchitectureRule | None:
    """Return the architecture of a name, an alias, a class or a `model_type`; None if unknown.

    Args:
        name: The name.
        text_type: `model_type` of the text model, which decides between architectures that have the
            same class.
    """
    plain, classes = plain_name(ALIASES.get(plain_name(name), name)), _with_same_body(name)
    rules = [
        rule
        for rule in ARCHITECTURES
        if not classes.isdisjoint(rule.classes) or plain in map(plain_name, _own(rule))
    ]
    inner = (rule for rule in rules if text_type in _own(rule))
    rule, wrapper = next(inner, next(iter(rules), None)), wrapper_of(name)
    if rule is not None or wrapper is None:
        return rule
    stated = isinstance(text_type, str) and wrapper_of(text_type) is None
    text = find_by_name(str(text_type) if stated else wrapper.text)
    return None if text is None else within(wrapper, text)


def _with_same_body(name: str) -> frozenset[str]:
    """Return a class, and those that have the same language model with another head."""
    stem = next((name.removesuffix(head) for head in _HEADS if name.endswith(head)), name)
    others = (f"{stem}{ending}" for ending in _BODIES) if stem != name else ()
    return frozenset((name, *others))


def _own(rule: ArchitectureRule) -> tuple[str, ...]:
    """Return the values of `model_type` that name an architecture."""
    return (rule.name, *rule.model_types)


def _described(candidates: list[str], text_type: object) -> str:
    """Return the names that a configuration states, and that of its text model if it has one."""
    stated = ", ".join(candidates)
    return (
        f"{stated} with the text model {text_type}" if any(map(wrapper_of, candidates)) else stated
    )
