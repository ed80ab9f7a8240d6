"""Reading rotary position embeddings from the older and the newer form of configurations.

older    rope_theta, rope_scaling {type or rope_type, factor, ...}, rope_local_base_freq,
         original_max_position_embeddings
newer    rope_parameters {rope_theta, rope_type, ...}, or one such object per layer type
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose, log, sqrt
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import (
    FULL,
    SLIDING,
    every_nth_full_if_window,
    unrotated_layers,
)

Rule = Callable[[Config], Mapping[str, object]]
"""A rule for the fields of `inference.rope`."""

Scalings = Mapping[str, Callable[[Config, Config], dict[str, object]]]
"""Functions that read the further parameters of a type of scaling, by the type."""


def read_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if all layers share one embedding.

    Raises:
        ConversionError: The format cannot express this type of scaling.
        SourceError: A parameter is missing or is not a number.
    """
    return _fields(_parameters(config, FULL), config, "global")


def read_partial_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if a part of each head may be rotated (Phi-3).

    Other architectures rotate whole heads in transformers, whatever `partial_rotary_factor` is, so
    their rules do not read that key.
    """
    parameters = _parameters(config, FULL)
    inner, outer = (one.optional_number("partial_rotary_factor") for one in (parameters, config))
    partial = outer if inner is None else inner
    block = _fields(parameters, config, "global")
    return {**block, "partial_rotary_factor": None if partial == 1.0 else partial}


def read_interleaved_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if neighbouring elements of a head form pairs."""
    return {**read_rope(config), "rope_interleaved": True}


def no_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if no layer has rope; the base is without effect."""
    config.get("rope_theta")  # a GGUF has it for every architecture
    return {"rope_theta": 10000.0, "unrotated_layers": tuple(range(config.layers))}


def read_dual_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if local layers have their own base (Gemma 3)."""
    local = _fields(_parameters(config, SLIDING), config, "local")
    return {**_fields(_parameters(config, FULL), config, "global"), **local}


def read_proportional_rope(global_head_dim: Callable[[Config], int]) -> Rule:
    """Return a rule for `inference.rope` if global layers rotate a part of the pairs (Gemma 4).

    The pairs are those of the whole head, and so are their frequencies.

    Args:
        global_head_dim: Rule for the head dimension of global layers.
    """

    def read(config: Config) -> dict[str, object]:
        local = _fields(_parameters(config, SLIDING), config, "local")
        parameters = _parameters(config, FULL)
        if parameters.get("rope_type") != "proportional":
            return {**_fields(parameters, config, "global"), **local}
        block: dict[str, object] = {"rope_theta": parameters.number("rope_theta")}
        factor = parameters.optional_number("factor")
        if factor not in (None, 1.0):
            block |= {"rope_scaling_type": "linear", "rope_scaling_factor": factor}
        part = parameters.optional_number("partial_rotary_factor")
        if part not in (None, 1.0):
            block["partial_rotary_factor"] = part
            block["rope_frequency_base_dim"] = global_head_dim(config)
        return {**block, **local}

    return read


def read_rope_of_some_layers(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if some layers have no rope (SmolLM3)."""
    return {**read_rope(config), "unrotated_layers": unrotated_layers(config) or None}


def read_rope_of_windows(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if only layers with a window have rope (EXAONE 4).

    All layers have it where the configuration states no window.
    """
    plain: tuple[int, ...] = ()
    if config.get("sliding_window") is not None:
        types = every_nth_full_if_window("sliding_window_pattern")(config)
        plain = tuple(layer for layer, kind in enumerate(types) if kind == FULL)
    return {**read_rope(config), "unrotated_layers": plain or None}


def read_rope_with_attention_factors(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if longrope states its attention factors (Phi-3.5 MoE).

    They stand for the one of the paper, in short contexts and in long ones.
    """
    return _fields(_parameters(config, FULL), config, "global", _WITH_ATTENTION_FACTORS)


def read_stretched_rope(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if `alpha` stretches the base (Hunyuan).

    The base is multiplied by alpha^(d / (d - 2)) for a head of d elements, whatever the length of
    the sequence is, although the configurations call the scaling `dynamic`.
    """
    parameters = _parameters(config, FULL)
    kind = parameters.get("rope_type") or parameters.get("type")
    if kind != "dynamic" or not parameters.get("alpha"):
        return read_rope(config)
    for key in ("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"):
        parameters.get(key)  # nobody reads these beside alpha
    size = config.head_dim
    stretch = parameters.number("alpha") ** (size / (size - 2))
    return {"rope_theta": parameters.number("rope_theta") * stretch}


def read_rope_with_default(scaling: Mapping[str, object]) -> Rule:
    """Return a rule for one embedding in all layers, with a scaling where none is stated."""

    def rule(config: Config) -> dict[str, object]:
        if config.get("rope_parameters") or config.get("rope_scaling"):
            return read_rope(config)
        assumed = {"rope_theta": config.get("rope_theta"), **scaling}
        return _fields(config.part("rope_scaling", assumed), config, "global")

    return rule


def interleaved(rule: Rule) -> Rule:
    """Return a rule for the fields that `rule` reads where neighbouring elements form a pair."""
    return lambda config: {**rule(config), "rope_interleaved": True}


def interleaved_if(key: str, rule: Rule) -> Rule:
    """Return a rule for the fields that `rule` reads where a flag says whether neighbours pair."""
    return lambda config: {**rule(config), "rope_interleaved": config.flag(key)}


def _parameters(config: Config, layer_type: str) -> Config:
    """Return the newer form's object for a layer type, built from the older keys if necessary."""
    stated = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if scaling and config.values.get("rope_parameters") is None:
        stated = {}  # the default of the newer form gives way to the older form
    if not isinstance(stated, dict):
        raise config.fault("rope_parameters", "an object", stated)
    if not isinstance(scaling, dict):
        raise config.fault("rope_scaling", "an object", scaling)
    path = "rope_parameters" if stated or not scaling else "rope_scaling"
    if layer_type in stated or any(isinstance(value, dict) for value in stated.values()):
        found = config.part(path, stated).get(layer_type) or {}
        if not isinstance(found, dict):
            raise config.fault(f"rope_parameters.{layer_type}", "an object", found)
        stated, path = found, f"{path}.{layer_type}"
    elif layer_type == SLIDING:
        stated, path = {}, f"{path}.{layer_type}"
    if layer_type == FULL:
        _check_same(config, stated, scaling)
        stated = {**scaling, **stated}
    theta = "rope_theta" if layer_type == FULL else "rope_local_base_freq"
    older = {"rope_theta": config.get(theta)}
    found = {**older, **{key: value for key, value in stated.items() if value is not None}}
    return config.part(path, found)


def _check_same(config: Config, stated: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Refuse the two forms if they contradict each other: readers differ in which one they use."""
    for key, value in scaling.items():
        if value is not None and stated.get(key, value) != value:
            raise config.fault(f"rope_scaling.{key}", f"{stated[key]}, as rope_parameters", value)


def _fields(
    parameters: Config, config: Config, scope: str, scalings: Scalings | None = None
) -> dict[str, object]:
    """Return the block's fields for global or for local layers."""
    scalings = _SCALINGS if scalings is None else scalings
    older_kind, kind = parameters.get("type"), parameters.get("rope_type")
    kind = kind or older_kind or "default"
    kind = _OLDER_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "dynamic":
        # It changes the base only beyond max_position_embeddings, the context of the package.
        parameters.number("factor")
        kind = "default"
    if (
        not isinstance(kind, str)
        or kind not in scalings
        or (scope == "local" and kind in _GLOBAL_ONLY)
    ):
        raise ConversionError(
            f"the format cannot express this type of rope scaling for {scope} layers",
            where=config.where,
            expected=", ".join(scalings),
            found=kind,
        )
    values: dict[str, object] = {"theta": parameters.number("rope_theta")}
    if scope == "global" and parameters.get("mrope_section") is not None:
        values["sections"] = _sections(parameters)
        values["interleaved"] = parameters.flag("mrope_interleaved")
    if kind != "default":
        values["type"] = kind
        values["factor"] = _factor(kind, parameters, config)
        values.update(scalings[kind](parameters, config))
        if scope == "local" and "yarn_attention" in values:
            raise _refusal("yarn of local layers", ["attention_factor"], config)
    return {_NAMES[name][scope == "local"]: value for name, value in values.items()}


_NAMES = {
    "theta": ("rope_theta", "rope_local_theta"),
    "type": ("rope_scaling_type", "rope_local_scaling_type"),
    "factor": ("rope_scaling_factor", "rope_local_scaling_factor"),
    "beta_fast": ("yarn_beta_fast", "rope_local_yarn_beta_fast"),
    "beta_slow": ("yarn_beta_slow", "rope_local_yarn_beta_slow"),
    "truncate": ("yarn_truncate", "yarn_truncate"),
    "yarn_attention": ("yarn_attention_factor", ""),
    "yarn_context": ("yarn_original_max_pos", "rope_local_yarn_original_max_pos"),
    "sections": ("mrope_section", ""),
    "interleaved": ("mrope_interleaved", ""),
    "short": ("longrope_short_factor", ""),
    "long": ("longrope_long_factor", ""),
    "longrope_context": ("longrope_original_max_pos", ""),
    "short_attention": ("longrope_short_attention_factor", ""),
    "long_attention": ("longrope_long_attention_factor", ""),
    "low_freq": ("llama3_low_freq_factor", ""),
    "high_freq": ("llama3_high_freq_factor", ""),
    "llama3_context": ("llama3_original_max_pos", ""),
}
"""The fields of each parameter for global and for local layers; empty if there is none."""


_OLDER_KINDS: Mapping[str, str] = {"su": "longrope", "mrope": "default"}
"""Older names of rope types, and the present ones."""

_GLOBAL_ONLY = ("llama3", "longrope")
"""Types of scaling for which the block has no fields for local layers."""


def _sections(parameters: Config) -> tuple[int, ...]:
    found = parameters.get("mrope_section")
    if not isinstance(found, list) or any(type(size) is not int or size < 0 for size in found):
        raise parameters.fault("mrope_section", "a list of sizes", found)
    return tuple(found)


def _factor(kind: str, parameters: Config, config: Config) -> float:
    """Return the scaling factor; if absent, LongRoPE's is the ratio of the context lengths."""
    if kind == "longrope" and parameters.get("factor") is None:
        longest = config.number("max_position_embeddings")
        return longest / _original_context(parameters, config)
    return parameters.number("factor")


def _no_parameters(parameters: Config, config: Config) -> dict[str, object]:
    del parameters, config
    return {}


def _llama3(parameters: Config, config: Config) -> dict[str, object]:
    return {
        "low_freq": parameters.number("low_freq_factor"),
        "high_freq": parameters.number("high_freq_factor"),
        "llama3_context": _original_context(parameters, config),
    }


def _yarn(parameters: Config, config: Config) -> dict[str, object]:
    """Read YaRN, with the attention factor if it differs from the paper's, 0.1 ln(factor) + 1."""
    factor = parameters.number("factor")
    usual = yarn_mscale(factor, 1.0)
    found = parameters.optional_number("attention_factor")
    scale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if found is None and scale and all_dim:
        scale, all_dim = parameters.number("mscale"), parameters.number("mscale_all_dim")
        found = yarn_mscale(factor, scale) / yarn_mscale(factor, all_dim)
    is_usual = found is None or isclose(found, usual, rel_tol=1e-6)
    truncate = {"truncate": False} if parameters.get("truncate") is False else {}
    return {
        "beta_fast": parameters.optional_number("beta_fast") or 32.0,
        "beta_slow": parameters.optional_number("beta_slow") or 1.0,
        "yarn_context": _original_context(parameters, config),
        **truncate,
        **({} if is_usual else {"yarn_attention": found}),
    }


def temperature_scale(config: Config) -> float | None:
    """Rule: the factor on the logarithm by which queries are scaled with their position."""
    return _parameters(config, FULL).optional_number("llama_4_scaling_beta")


def temperature_length(config: Config) -> int | None:
    """Rule: the number of positions whose queries are scaled by the same factor."""
    if temperature_scale(config) is None:
        return None
    return _parameters(config, FULL).integer("original_max_position_embeddings")


def softmax_correction(config: Config) -> float:
    """Return DeepSeek's factor on the softmax scale for longer contexts, before it is squared."""
    parameters = _parameters(config, FULL)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default" or not parameters.get("mscale_all_dim"):
        return 1.0
    return yarn_mscale(parameters.number("factor"), parameters.number("mscale_all_dim"))


def yarn_mscale(factor: float, scale: float) -> float:
    """Return the correction of the softmax temperature for a context that is `factor` longer."""
    return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(parameters: Config, config: Config) -> dict[str, object]:
    """Read LongRoPE, whose attention factor must be the paper's.

    It is sqrt(1 + ln(factor) / ln(original context)).
    """
    factor = _factor("longrope", parameters, config)
    original = _original_context(parameters, config)
    usual = sqrt(1.0 + log(factor) / log(original)) if factor > 1 else 1.0
    unusual = [key for key in ("short_mscale", "long_mscale") if parameters.get(key)]
    _check_usual("longrope", usual, unusual, parameters, config)
    return {
        "short": _factors(parameters, "short_factor"),
        "long": _factors(parameters, "long_factor"),
        "longrope_context": original,
    }


def _corrected_longrope(parameters: Config, config: Config) -> dict[str, object]:
    """Read LongRoPE whose attention factors are stated."""
    return {
        "short": _factors(parameters, "short_factor"),
        "long": _factors(parameters, "long_factor"),
        "longrope_context": _original_context(parameters, config),
        "short_attention": parameters.number("short_mscale"),
        "long_attention": parameters.number("long_mscale"),
    }


def _factors(parameters: Config, key: str) -> tuple[float, ...]:
    found = parameters.get(key)
    is_list = isinstance(found, list) and len(found) > 0
    if not is_list or any(type(one) not in (int, float) or not one > 0 for one in found):
        raise parameters.fault(key, "a list of positive numbers", found)
    return tuple(float(one) for one in found)


def _check_usual(
    kind: str, usual: float, unusual: list[str], parameters: Config, config: Config
) -> None:
    """Refuse an attention factor (softmax temperature) that differs from the paper's."""
    stated = parameters.optional_number("attention_factor")
    if stated is not None and not isclose(stated, usual, rel_tol=1e-6):
        unusual = [*unusual, "attention_factor"]
    if unusual:
        raise _refusal(kind, unusual, config)


def _refusal(kind: str, parameters: list[str], config: Config) -> ConversionError:
    """Return the error for parameters of a scaling that the format cannot express."""
    return ConversionError(
        f"{kind} with these parameters cannot be converted",
        where=config.where,
        found=", ".join(parameters),
    )


def _original_context(parameters: Config, config: Config) -> int:
    key = "original_max_position_embeddings"
    for values in (parameters, config):
        if values.get(key) is not None:
            return values.integer(key)
    return config.integer("max_position_embeddings")


_SCALINGS: Scalings = {
    "default": _no_parameters,
    "linear": _no_parameters,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
_WITH_ATTENTION_FACTORS: Scalings = {"default": _no_parameters, "longrope": _corrected_longrope}
