"""Reading rotary position embeddings from the older and the newer form of configurations.

older    rope_theta, rope_scaling {type or rope_type, factor, ...}, rope_local_base_freq,
         original_max_position_embeddings
newer    rope_parameters {rope_theta, rope_type, ...}, or one such object per layer type
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures._rope_scaling import (
    GLOBAL_ONLY,
    OLDER_KINDS,
    SCALINGS,
    WITH_ATTENTION_FACTORS,
    Scalings,
    refusal,
    scaling_factor,
    yarn_mscale,
)
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import (
    FULL,
    SLIDING,
    every_nth_full_if_window,
    unrotated_layers,
)

Rule = Callable[[Config], Mapping[str, object]]
"""A rule for the fields of `inference.rope`."""


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
    inner, outer = (part.optional_number("partial_rotary_factor") for part in (parameters, config))
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


def read_proportional_rope(
    global_head_dim: Callable[[Config], float], kinds: Sequence[str] = ("proportional",)
) -> Rule:
    """Return a rule for `inference.rope` if global layers rotate a part of the pairs (Gemma 4).

    The pairs are those of the whole head, and so are their frequencies.

    Args:
        global_head_dim: Rule for the head dimension of global layers.
        kinds: Values of `rope_type` for such a rotation.
    """

    def read(config: Config) -> dict[str, object]:
        local = _fields(_parameters(config, SLIDING), config, "local")
        parameters = _parameters(config, FULL)
        if parameters.get("rope_type") not in kinds:
            return {**_fields(parameters, config, "global"), **local}
        block: dict[str, object] = {"rope_theta": parameters.number("rope_theta")}
        factor = parameters.optional_number("factor")
        if factor not in (None, 1.0):
            block |= {"rope_scaling_type": "linear", "rope_scaling_factor": factor}
        part = parameters.optional_number("partial_rotary_factor")
        if part not in (None, 1.0):
            block["partial_rotary_factor"] = part
            block["rope_frequency_base_dim"] = int(global_head_dim(config))
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
        types = every_nth_full_if_window(config)
        plain = tuple(layer for layer, kind in enumerate(types) if kind == FULL)
    return {**read_rope(config), "unrotated_layers": plain or None}


def read_rope_with_attention_factors(config: Config) -> dict[str, object]:
    """Rule: the fields of `inference.rope` if longrope states its attention factors (Phi-3.5 MoE).

    They stand for the one of the paper, in short contexts and in long ones.
    """
    return _fields(_parameters(config, FULL), config, "global", WITH_ATTENTION_FACTORS)


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
        of_type = config.part(path, stated).get(layer_type) or {}
        if not isinstance(of_type, dict):
            raise config.fault(f"rope_parameters.{layer_type}", "an object", of_type)
        stated, path = of_type, f"{path}.{layer_type}"
    elif layer_type == SLIDING:
        stated, path = {}, f"{path}.{layer_type}"
    if layer_type == FULL:
        _check_same(config, stated, scaling)
        stated = {**scaling, **stated}
    theta = "rope_theta" if layer_type == FULL else "rope_local_base_freq"
    older = {"rope_theta": config.get(theta)}
    values = {**older, **{key: value for key, value in stated.items() if value is not None}}
    return config.part(path, values)


def _check_same(config: Config, stated: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """Refuse the two forms if they contradict each other: readers differ in which one they use."""
    for key, value in scaling.items():
        if value is not None and stated.get(key, value) != value:
            raise config.fault(f"rope_scaling.{key}", f"{stated[key]}, as rope_parameters", value)


def _fields(
    parameters: Config, config: Config, scope: str, scalings: Scalings | None = None
) -> dict[str, object]:
    """Return the block's fields for global or for local layers."""
    scalings = SCALINGS if scalings is None else scalings
    older_kind, kind = parameters.get("type"), parameters.get("rope_type")
    kind = kind or older_kind or "default"
    kind = OLDER_KINDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind == "dynamic":
        # It changes the base only beyond max_position_embeddings, the context of the package.
        parameters.number("factor")
        kind = "default"
    if (
        not isinstance(kind, str)
        or kind not in scalings
        or (scope == "local" and kind in GLOBAL_ONLY)
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
        values["factor"] = scaling_factor(kind, parameters, config)
        values.update(scalings[kind](parameters, config))
        if scope == "local" and "yarn_attention" in values:
            raise refusal("yarn of local layers", ["attention_factor"], config)
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


def _sections(parameters: Config) -> tuple[int, ...]:
    sections = parameters.get("mrope_section")
    if not isinstance(sections, list) or any(
        type(size) is not int or size < 0 for size in sections
    ):
        raise parameters.fault("mrope_section", "a list of sizes", sections)
    return tuple(sections)


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
