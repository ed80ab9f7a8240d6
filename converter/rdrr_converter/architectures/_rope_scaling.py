"""The types of scaling of rotary position embeddings, and the parameters that each of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose, log, sqrt

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.config import Config

Scalings = Mapping[str, Callable[[Config, Config], dict[str, object]]]
"""Functions that read the further parameters of a type of scaling, by the type."""

OLDER_KINDS: Mapping[str, str] = {"deepseek_yarn": "yarn", "mrope": "default", "su": "longrope"}
"""Older names of rope types, and the present ones."""

GLOBAL_ONLY = ("llama3", "longrope")
"""Types of scaling for which the block has no fields for local layers."""


def scaling_factor(kind: str, parameters: Config, config: Config) -> float:
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
    attention = parameters.optional_number("attention_factor")
    scale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if attention is None and scale and all_dim:
        scale, all_dim = parameters.number("mscale"), parameters.number("mscale_all_dim")
        attention = yarn_mscale(factor, scale) / yarn_mscale(factor, all_dim)
    is_usual = attention is None or isclose(attention, usual, rel_tol=1e-6)
    truncate = {"truncate": False} if parameters.get("truncate") is False else {}
    return {
        "beta_fast": parameters.optional_number("beta_fast") or 32.0,
        "beta_slow": parameters.optional_number("beta_slow") or 1.0,
        "yarn_context": _original_context(parameters, config),
        **truncate,
        **({} if is_usual else {"yarn_attention": attention}),
    }


def yarn_mscale(factor: float, scale: float) -> float:
    """Return the correction of the softmax temperature for a context that is `factor` longer."""
    return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(parameters: Config, config: Config) -> dict[str, object]:
    """Read LongRoPE, whose attention factor must be the paper's.

    It is sqrt(1 + ln(factor) / ln(original context)).
    """
    factor = scaling_factor("longrope", parameters, config)
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
    factors = parameters.get(key)
    is_list = isinstance(factors, list) and len(factors) > 0
    if not is_list or any(type(factor) not in (int, float) or not factor > 0 for factor in factors):
        raise parameters.fault(key, "a list of positive numbers", factors)
    return tuple(float(factor) for factor in factors)


def _check_usual(
    kind: str, usual: float, unusual: list[str], parameters: Config, config: Config
) -> None:
    """Refuse an attention factor (softmax temperature) that differs from the paper's."""
    stated = parameters.optional_number("attention_factor")
    if stated is not None and not isclose(stated, usual, rel_tol=1e-6):
        unusual = [*unusual, "attention_factor"]
    if unusual:
        raise refusal(kind, unusual, config)


def refusal(kind: str, parameters: list[str], config: Config) -> ConversionError:
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


SCALINGS: Scalings = {
    "default": _no_parameters,
    "linear": _no_parameters,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""The types of scaling, as the papers have them."""

WITH_ATTENTION_FACTORS: Scalings = {"default": _no_parameters, "longrope": _corrected_longrope}
"""The types of scaling where longrope states its attention factors."""
