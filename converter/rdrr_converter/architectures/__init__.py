"""The supported architectures, one declarative file each, and the lookup by configuration.

To add an architecture, write its file and name its constant in `ARCHITECTURES`
(docs/ADDING_AN_ARCHITECTURE.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdrr_format.errors import ConversionError, UsageError

from rdrr_converter.architectures._aliases import ALIASES, FAMILIES, plain_name
from rdrr_converter.architectures.apertus import APERTUS
from rdrr_converter.architectures.arcee import ARCEE
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule, read_block
from rdrr_converter.architectures.cohere import COHERE
from rdrr_converter.architectures.cohere2 import COHERE2
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.deepseek_v2 import DEEPSEEK_V2
from rdrr_converter.architectures.deepseek_v3 import DEEPSEEK_V3
from rdrr_converter.architectures.dots1 import DOTS1
from rdrr_converter.architectures.ernie4_5 import ERNIE4_5
from rdrr_converter.architectures.ernie4_5_moe import ERNIE4_5_MOE
from rdrr_converter.architectures.exaone4 import EXAONE4
from rdrr_converter.architectures.exaone_moe import EXAONE_MOE
from rdrr_converter.architectures.falcon import FALCON
from rdrr_converter.architectures.falcon_h1 import FALCON_H1
from rdrr_converter.architectures.flex_olmo import FLEX_OLMO
from rdrr_converter.architectures.gemma import GEMMA
from rdrr_converter.architectures.gemma2 import GEMMA2
from rdrr_converter.architectures.gemma3 import GEMMA3
from rdrr_converter.architectures.gemma3n import GEMMA3N
from rdrr_converter.architectures.gemma4 import GEMMA4
from rdrr_converter.architectures.gemma4_unified import GEMMA4_UNIFIED
from rdrr_converter.architectures.glm import GLM
from rdrr_converter.architectures.glm4 import GLM4
from rdrr_converter.architectures.glm4_moe import GLM4_MOE
from rdrr_converter.architectures.glm4_moe_lite import GLM4_MOE_LITE
from rdrr_converter.architectures.gpt2 import GPT2
from rdrr_converter.architectures.gpt_neox import GPT_NEOX
from rdrr_converter.architectures.gpt_oss import GPT_OSS
from rdrr_converter.architectures.granite import GRANITE
from rdrr_converter.architectures.granitemoe import GRANITEMOE
from rdrr_converter.architectures.granitemoehybrid import GRANITEMOEHYBRID
from rdrr_converter.architectures.granitemoeshared import GRANITEMOESHARED
from rdrr_converter.architectures.helium import HELIUM
from rdrr_converter.architectures.hunyuan_v1_dense import HUNYUAN_V1_DENSE
from rdrr_converter.architectures.hunyuan_v1_moe import HUNYUAN_V1_MOE
from rdrr_converter.architectures.internlm3 import INTERNLM3
from rdrr_converter.architectures.lfm2 import LFM2
from rdrr_converter.architectures.lfm2_moe import LFM2_MOE
from rdrr_converter.architectures.llama import LLAMA
from rdrr_converter.architectures.llama4_text import LLAMA4_TEXT
from rdrr_converter.architectures.mamba2 import MAMBA2
from rdrr_converter.architectures.minimax_m2 import MINIMAX_M2
from rdrr_converter.architectures.ministral import MINISTRAL
from rdrr_converter.architectures.ministral3 import MINISTRAL3
from rdrr_converter.architectures.mistral import MISTRAL
from rdrr_converter.architectures.mixtral import MIXTRAL
from rdrr_converter.architectures.nemotron import NEMOTRON
from rdrr_converter.architectures.nemotron_h import NEMOTRON_H
from rdrr_converter.architectures.olmo import OLMO
from rdrr_converter.architectures.olmo2 import OLMO2
from rdrr_converter.architectures.olmo3 import OLMO3
from rdrr_converter.architectures.olmoe import OLMOE
from rdrr_converter.architectures.opt import OPT
from rdrr_converter.architectures.phi import PHI
from rdrr_converter.architectures.phi3 import PHI3
from rdrr_converter.architectures.phimoe import PHIMOE
from rdrr_converter.architectures.qwen2 import QWEN2
from rdrr_converter.architectures.qwen2_moe import QWEN2_MOE
from rdrr_converter.architectures.qwen2_vl import QWEN2_VL
from rdrr_converter.architectures.qwen3 import QWEN3
from rdrr_converter.architectures.qwen3_5 import QWEN3_5
from rdrr_converter.architectures.qwen3_5_moe import QWEN3_5_MOE
from rdrr_converter.architectures.qwen3_moe import QWEN3_MOE
from rdrr_converter.architectures.qwen3_next import QWEN3_NEXT
from rdrr_converter.architectures.qwen3_vl import QWEN3_VL
from rdrr_converter.architectures.seed_oss import SEED_OSS
from rdrr_converter.architectures.smollm3 import SMOLLM3
from rdrr_converter.architectures.solar_open import SOLAR_OPEN
from rdrr_converter.architectures.stablelm import STABLELM
from rdrr_converter.architectures.starcoder2 import STARCODER2
from rdrr_converter.architectures.vaultgemma import VAULTGEMMA
from rdrr_converter.architectures.wedlm import WEDLM

__all__ = [
    "ARCHITECTURES",
    "CLASSIFIER",
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

ARCHITECTURES: tuple[ArchitectureRule, ...] = (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DOTS1,
    ERNIE4_5_MOE,
    FALCON_H1,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GEMMA4_UNIFIED,
    GLM4_MOE,
    SOLAR_OPEN,
    GPT_OSS,
    GLM4_MOE_LITE,
    GRANITEMOE,
    GRANITEMOESHARED,
    LFM2,
    LFM2_MOE,
    LLAMA,
    LLAMA4_TEXT,
    MAMBA2,
    MISTRAL,
    MINISTRAL,
    MINISTRAL3,
    INTERNLM3,
    MIXTRAL,
    MINIMAX_M2,
    PHI3,
    PHIMOE,
    QWEN2,
    QWEN2_MOE,
    QWEN2_VL,
    QWEN3,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_VL,
    SEED_OSS,
    SMOLLM3,
    VAULTGEMMA,
    APERTUS,
    ARCEE,
    ERNIE4_5,
    EXAONE4,
    EXAONE_MOE,
    GLM,
    GLM4,
    HELIUM,
    HUNYUAN_V1_DENSE,
    HUNYUAN_V1_MOE,
    OLMO,
    OLMO2,
    OLMO3,
    OLMOE,
    FLEX_OLMO,
    WEDLM,
    COHERE,
    COHERE2,
    FALCON,
    GPT2,
    GPT_NEOX,
    NEMOTRON,
    NEMOTRON_H,
    OPT,
    PHI,
    STABLELM,
    STARCODER2,
    GRANITE,
    GRANITEMOEHYBRID,
)
"""Granite and its hybrids come last: they can describe every Llama too, and an export uses the
first match."""

CLASSIFIER = "ForSequenceClassification"
"""How the names of classes end that classify texts by a linear layer on the last token."""

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
        found = find_by_name(override)
        if found is None:
            raise UsageError("unknown architecture", expected=_known(), found=override)
        return found
    candidates = stated_names(config)
    inner = config.get("text_config")
    text_type = (inner if isinstance(inner, Mapping) else config).get("model_type")
    for name in candidates:
        found = find_by_name(name, text_type)
        if found is not None:
            return found
    raise ConversionError(
        "unknown architecture",
        where=where,
        expected="one that `rdrr architectures` lists",
        found=", ".join(candidates) or "no architectures and no model_type",
        hint="`arch` forces another one, but a model that does not compute exactly the same then "
        "gives wrong results",
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
        return None if find_by_name(model_type) is rule else "model_type"
    listed = config.get("architectures")
    names = [name for name in (listed if isinstance(listed, list) else ()) if isinstance(name, str)]
    return "architectures" if names and rule not in map(find_by_name, names) else None


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
    found = [
        rule
        for rule in ARCHITECTURES
        if not classes.isdisjoint(rule.classes) or plain in map(plain_name, _own(rule))
    ]
    inner = (rule for rule in found if text_type in _own(rule))
    return next(inner, next(iter(found), None))


def _with_same_body(name: str) -> frozenset[str]:
    """Return a class, and those that have the same language model with another head."""
    stem = name.removesuffix(CLASSIFIER)
    others = (f"{stem}{ending}" for ending in _BODIES) if stem != name else ()
    return frozenset((name, *others))


def _own(rule: ArchitectureRule) -> tuple[str, ...]:
    """Return the values of `model_type` that name an architecture."""
    return (rule.name, *rule.model_types)


def _known() -> str:
    """Return the names of all architectures; with their classes, the list would be cut."""
    return ", ".join(rule.name for rule in ARCHITECTURES)
