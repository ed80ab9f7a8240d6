"""Bytes that a phase cannot avoid moving: its weights, and its part of the key-value cache.

Activations are left out: they are small beside these and mostly stay in the GPU's caches. Counted
by what phases bind and how they call it (`weight...`, `k_cache`, `v_cache`), so a new phase is
counted as soon as it follows these names.
"""

from __future__ import annotations

from rdrr_device.shaders import Access

from rdrr_runtime.phases.phase import Number, Phase

_CACHES = frozenset({"k_cache", "v_cache"})
_STORES = frozenset({"kv_store", "kv_store_blocks", "norm_rope_store"})  # which read no keys


def traffic(one: Phase, rows: int, base: int) -> int:
    """Bytes of weights and caches.

    Args:
        one: The phase.
        rows: Token rows of the pass.
        base: KV slots filled before it.
    """
    family, constants = one.record.shader, one.record.constants
    total = 0.0
    for binding, part in zip(one.bindings, one.slices, strict=True):
        if binding.name.startswith("weight"):
            total += _weight_bytes(family, constants, part.size, rows)
        elif binding.name in _CACHES:
            slots = 0 if family in _STORES else _slots_read(constants, rows, base)
            slots += rows if binding.access is Access.READ_WRITE else 0
            total += slots * part.size / constants["CONTEXT"]
    return round(total)


def _weight_bytes(family: str, constants: dict[str, Number], size: int, rows: int) -> float:
    if family == "embed":
        return min(1.0, rows / constants["OUTPUTS"]) * size
    if "EXPERTS" in constants:
        # Rows may share experts; as many as there are routes is the most that are read.
        return size * min(1.0, rows * constants["TOP_K"] / constants["EXPERTS"])
    return size


def _slots_read(constants: dict[str, Number], rows: int, base: int) -> float:
    """KV slots that any row sees: the rows share them."""
    window = constants.get("WINDOW", 0)
    filled = min(base + rows, constants["CONTEXT"])
    return min(filled, window + rows - 1) if window else filled
