"""The limit `max_vram`: compare the GPU memory that a model needs with it before loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError

from rdrr._units import format_size

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_device.tuning import Tuning
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.hints import Policy
    from rdrr_runtime.exec.footprint import Footprint
    from rdrr_runtime.gpu_tower import TowerFootprint

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
    from rdrr_runtime.gpu_tower import tower_footprint

    need = footprint(
        package,
        device.capabilities,
        policy,
        context=context,
        kv_dtype=options.kv_dtype,
        tuning=tuning,
    )
    tower = tower_footprint(package, device.capabilities, policy, context)
    parts = _parts(need, tower)
    peak = sum(size for size, _ in parts)
    if peak > limit:
        blocks = all(cache.holds_blocks(32) for cache in package.graph.caches.values())
        refusal = DeviceError(
            "the model takes more GPU memory than `max_vram` allows",
            where=package.where,
            expected=f"at most {format_size(limit)}",
            found=f"{format_size(peak)} = {_sum(parts)}",
            hint=", or ".join(
                [
                    *(["`rounded_weights` shared"] if need.rounded else []),
                    *(["`layer_inputs` host"] if _has_tables_on_gpu(package, policy) else []),
                    *_advice(need, options.kv_dtype, context, blocks, tower is not None),
                ]
            ),
        )
        refusal.need = peak
        raise refusal


def _has_tables_on_gpu(package: Package, policy: Policy) -> bool:
    return bool(package.graph.further_tables) and not policy.keeps_tables_on_host


def _parts(need: Footprint, tower: TowerFootprint | None) -> list[tuple[int, str]]:
    """Return the parts of the largest sum of memory that is taken at a time, and their names."""
    temporary = [(need.staging, "staging while loading")]
    parts = [
        (need.weights, "weights"),
        (need.kv, "key-value cache"),
        (need.rest, "activations and tables"),
    ]
    if tower is not None:
        parts.append((tower.weights, "vision tower"))
        # The tower is loaded when the first image comes, after the staging of the text model.
        temporary += [(tower.staging, temporary[0][1]), (tower.image, "the largest image")]
    return [*parts, max(temporary)]


def _sum(parts: Sequence[tuple[int, str]]) -> str:
    return " + ".join(f"{format_size(size)} {name}" for size, name in parts)


def _advice(
    need: Footprint, kv_dtype: str, context: int, blocks: bool, sees: bool
) -> Iterator[str]:
    per_token = format_size(need.kv / context)
    yield f"use a `context` below {context} (each token takes {per_token} of the cache)"
    if kv_dtype == "f32":
        yield "`kv_dtype` f16, which halves the cache"
    if kv_dtype != "q8_0" and blocks:
        part = 34 / (128 if kv_dtype == "f32" else 64)
        yield f"`kv_dtype` q8_0, for a cache of {format_size(need.kv * part)}"
    yield "a package with fewer bits per weight" + ", or without its tower" * sees
