"""Rules on the typed blocks: sizes that must be divisible, and fields that need each other."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, sqrt

from rdrr_manifests.generations import Generation
from rdrr_manifests.models import Rope
from rdrr_manifests.rules.subject import Finding, Rule, Subject


def heads(subject: Subject) -> Iterator[Finding]:
    """Check that every key-value head serves the same number of query heads."""
    sizes = subject.manifest.architecture
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        yield Finding(
            "architecture.numKeyValueHeads",
            "numAttentionHeads is not a multiple of it",
            f"a divisor of {sizes.num_attention_heads}",
            sizes.num_key_value_heads,
        )


def rotary_dim(subject: Subject) -> Iterator[Finding]:
    """Check that the rotated part of a head has an even width, since rope rotates pairs."""
    rope, head_dim = subject.manifest.inference.rope, subject.manifest.architecture.head_dim
    for name, factor in (
        ("partialRotaryFactor", rope.partial_rotary_factor),
        ("ropeLocalPartialRotaryFactor", rope.rope_local_partial_rotary_factor),
    ):
        width = int(head_dim * factor) if factor is not None else head_dim
        if width % 2 or not width:
            where = "architecture.headDim" if factor is None else f"inference.rope.{name}"
            yield Finding(where, "rope rotates pairs of elements", "an even, positive width", width)
            return


def layer_pattern(subject: Subject) -> Iterator[Finding]:
    """Check that the layer pattern has the fields that its type needs, for every layer."""
    pattern = subject.manifest.inference.layer_pattern
    layers = subject.manifest.architecture.num_layers
    where = "inference.layerPattern"
    if pattern.layer_types is not None and len(pattern.layer_types) != layers:
        yield Finding(
            f"{where}.layerTypes",
            "the list does not have one layer type for each layer",
            f"{layers} layer types",
            len(pattern.layer_types),
        )
    if pattern.type == "custom" and pattern.layer_types is None:
        yield Finding(
            f"{where}.layerTypes", "the field is missing", "one layer type for each layer"
        )
    if pattern.type == "every_n":
        period, offset = pattern.period, pattern.offset
        if period is None or period < 1:
            yield Finding(f"{where}.period", "not a valid period", "a positive integer", period)
        elif offset is not None and not 0 <= offset < period:
            yield Finding(
                f"{where}.offset", "the offset is outside the period", f"0 to {period - 1}", offset
            )
    if pattern.type == "alternating" and pattern.global_pattern not in ("odd", "even"):
        yield Finding(
            f"{where}.globalPattern",
            "an alternating pattern needs this field",
            "odd or even",
            pattern.global_pattern,
        )


def rope_scaling(subject: Subject) -> Iterator[Finding]:
    """Check that a rope scaling has the parameters that its formula needs."""
    rope = subject.manifest.inference.rope
    for field, value in _needed(rope):
        if value is None:
            yield Finding(
                f"inference.rope.{field}",
                f"rope scaling {rope.rope_scaling_type} needs this field",
            )
    low, high = rope.llama3_low_freq_factor, rope.llama3_high_freq_factor
    if rope.rope_scaling_type == "llama3" and low is not None and high is not None and low >= high:
        yield Finding(
            "inference.rope.llama3HighFreqFactor",
            "not greater than llama3LowFreqFactor",
            f"> {low}",
            high,
        )
    for field, factors in (
        ("longropeShortFactor", rope.longrope_short_factor),
        ("longropeLongFactor", rope.longrope_long_factor),
    ):
        width = int(subject.manifest.architecture.head_dim * (rope.partial_rotary_factor or 1))
        if rope.rope_scaling_type == "longrope" and factors and len(factors) != width // 2:
            yield Finding(
                f"inference.rope.{field}",
                "the list does not have one factor for each rotated pair",
                f"{width // 2} factors",
                len(factors),
            )


def _needed(rope: Rope) -> tuple[tuple[str, object], ...]:
    """Return the names and values of the fields that the stated rope scaling needs."""
    match rope.rope_scaling_type:
        case "llama3":
            return (
                ("llama3LowFreqFactor", rope.llama3_low_freq_factor),
                ("llama3HighFreqFactor", rope.llama3_high_freq_factor),
                ("llama3OriginalMaxPos", rope.llama3_original_max_pos),
            )
        case "yarn":
            return (("yarnOriginalMaxPos", rope.yarn_original_max_pos),)
        case "longrope":
            return (
                ("longropeShortFactor", rope.longrope_short_factor),
                ("longropeLongFactor", rope.longrope_long_factor),
                ("longropeOriginalMaxPos", rope.longrope_original_max_pos),
            )
        case _:
            return ()


def attention_scale(subject: Subject) -> Iterator[Finding]:
    """Check that `queryPreAttnScalar` is not a square root, as it was in January 2026."""
    head_dim = subject.manifest.architecture.head_dim
    scalar = subject.manifest.inference.attention.query_pre_attn_scalar
    is_root = isclose(scalar, sqrt(head_dim), rel_tol=1e-3) and head_dim > 1
    if subject.generation is Generation.CURRENT and is_root:
        yield Finding(
            "inference.attention.queryPreAttnScalar",
            "the square root of headDim: scores are divided by the square root of this field",
            head_dim,
            scalar,
        )


_NEEDS = ("architecture", "inference")
RULES = (
    Rule("attention-heads", heads, needs=_NEEDS),
    Rule("rotary-dim", rotary_dim, needs=_NEEDS),
    Rule("layer-pattern", layer_pattern, needs=_NEEDS),
    Rule("rope-scaling", rope_scaling, needs=_NEEDS),
    Rule("attention-scale", attention_scale, "warning", needs=_NEEDS),
)
