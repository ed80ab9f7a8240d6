"""The limit `max_vram`: compare the GPU memory that a model needs with it before loading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError

from rdrr._units import format_size

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_device.tuning import Tuning
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.exec.footprint import Footprint

    from rdrr._load_options import LoadOptions


def refuse_beyond_limit(
    package: Package,
    device: Device,
    policy: Policy,
    options: LoadOptions,
    *,
    context: int,
    tuning: Tuning,
) -> None:
    """Refuse a package that needs more GPU memory than `options.max_vram`, without reading weights.

    Raises:
        DeviceError: It needs more; the message lists the parts of the sum.
    """
    limit = options.max_vram
    if limit is None:
        return
    from rdrr_runtime.exec.footprint import footprint

    need = footprint(
        package,
        device.capabilities,
        policy,
        context=context,
        kv_dtype=options.kv_dtype,
        tuning=tuning,
    )
    if need.peak > limit:
        blocks = all(cache.holds_blocks(32) for cache in package.graph.caches.values())
        raise DeviceError(
            "the model takes more GPU memory than `max_vram` allows",
            where=package.where,
            expected=f"at most {format_size(limit)}",
            found=f"{format_size(need.peak)} = {_sum(need)}",
            hint=", or ".join(
                [
                    *(["`layer_inputs` host"] if _has_tables_on_gpu(package, policy) else []),
                    *_advice(need, options.kv_dtype, context, blocks),
                ]
            ),
        )


def _has_tables_on_gpu(package: Package, policy: Policy) -> bool:
    return bool(package.graph.further_tables) and not policy.keeps_tables_on_host


def _sum(need: Footprint) -> str:
    parts = (
        ("weights", need.weights),
        ("key-value cache", need.kv),
        ("activations and tables", need.rest),
        ("staging while loading", need.staging),
    )
    return " + ".join(f"{format_size(size)} {name}" for name, size in parts)


def _advice(need: Footprint, kv_dtype: str, context: int, blocks: bool) -> Iterator[str]:
    per_token = format_size(need.kv / context)
    yield f"use a `context` below {context} (each token takes {per_token} of the cache)"
    if kv_dtype == "f32":
        yield "`kv_dtype` f16, which halves the cache"
    if kv_dtype != "q8_0" and blocks:
        part = 34 / (128 if kv_dtype == "f32" else 64)
        yield f"`kv_dtype` q8_0, for a cache of {format_size(need.kv * part)}"
    yield "a package with fewer bits per weight"
