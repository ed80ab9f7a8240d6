"""Kernel hints: the converter's policy on how a package should be run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import Field
from rdrr_format.errors import UsageError

from rdrr_manifests.models.base import ManifestModel

HINT_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "q4kMatmul": ("auto", "fused_q4k", "fused_q4k_int8", "dequant_f16", "dequant_f32"),
        "f16Matmul": ("auto", "gemv_subgroup", "gemv", "tiled"),
        "attentionPrefill": ("auto", "tiled_large", "tiled_small", "streaming", "split_kv"),
        "attentionDecode": ("auto", "tiled_large", "tiled_small", "streaming", "split_kv"),
        "computePrecision": ("auto", "f16", "f32"),
    }
)
"""Each hint that decides something and the values it may have; `auto` is no hint."""


class KernelHints(ManifestModel):
    """`optimizations.kernelHints`. The last two are facts about a run, never decisions."""

    # The camel-case rule would give q4KMatmul; the public spelling has a small k.
    q4k_matmul: str = Field(default="auto", alias="q4kMatmul")
    f16_matmul: str = "auto"
    attention_prefill: str = "auto"
    attention_decode: str = "auto"
    compute_precision: str = "auto"
    tuned_device: str | None = None
    benchmark_tok_per_sec: float | None = None


class Optimizations(ManifestModel):
    """The block that holds the hints."""

    kernel_hints: KernelHints = KernelHints()


def parse_hint(text: str) -> tuple[str, str]:
    """Split `KEY=VALUE` and check both.

    Raises:
        UsageError: No `=`, an unknown key, or a value that the key does not have.
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
