"""Kernel hints: the converter's recommendations on how a package should be run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field
from rdrr_format.errors import UsageError

from rdrr_manifests.models.base import ManifestModel

HINT_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "q4kMatmul": ("auto", "fused_q4k", "fused_q4k_int8", "dequant_f16", "dequant_f32"),
        "f16Matmul": ("auto", "gemv_subgroup", "gemv", "tiled", "int8"),
        "attentionPrefill": ("auto", "tiled_large", "tiled_small", "streaming", "split_kv"),
        "attentionDecode": ("auto", "tiled_large", "tiled_small", "streaming", "split_kv"),
        "computePrecision": ("auto", "f16", "f32"),
    }
)
"""The values of each hint that selects kernels; `auto` leaves the choice to the runtime."""


class KernelHints(ManifestModel):
    """`optimizations.kernelHints`: the hints by name.

    Attributes:
        q4k_matmul: How products with Q4_K weights are computed.
        f16_matmul: How products with F16, BF16 and F32 weights are computed.
        attention_prefill: Attention kernel of the prefill.
        attention_decode: Attention kernel of the decode passes.
        compute_precision: Type of the activations, `f16` or `f32`.
        tuned_device: Device that the package was measured on; it selects nothing.
        benchmark_tok_per_sec: Tokens per second measured there; it selects nothing.
    """

    # The alias generator would give q4KMatmul; the public spelling has a lower-case k.
    q4k_matmul: str = Field(default="auto", alias="q4kMatmul")
    f16_matmul: str = "auto"
    attention_prefill: str = "auto"
    attention_decode: str = "auto"
    compute_precision: str = "auto"
    tuned_device: str | None = None
    benchmark_tok_per_sec: float | None = None


class Optimizations(ManifestModel):
    """`optimizations`: the block that contains the kernel hints.

    Attributes:
        kernel_hints: Recommendations on how the package should be run.
    """

    kernel_hints: KernelHints = KernelHints()


def parse_hint(text: str) -> tuple[str, str]:
    """Parse `KEY=VALUE` as the name and value of a hint.

    Raises:
        UsageError: The `=` is missing, the hint is unknown, or the value is not one of the hint's.
    """
    key, separator, value = text.partition("=")
    if not separator or key not in HINT_VALUES:
        keys = ", ".join(HINT_VALUES)
        raise UsageError(
            "unknown kernel hint", expected=f"KEY=VALUE with a key of {keys}", found=text
        )
    if value not in HINT_VALUES[key]:
        raise UsageError(f"{key} has no such value", expected=HINT_VALUES[key], found=value)
    return key, value
