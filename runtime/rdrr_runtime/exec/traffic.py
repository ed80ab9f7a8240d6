"""Bytes that a dispatch cannot avoid moving: its weights, and its part of the key-value cache.

Activations are left out: they are small beside these and mostly stay in the GPU's caches. Counted
by what kernels bind and how they call it (`weight...`, `k_cache`, `v_cache`), so a new kernel is
counted as soon as it follows these names.
"""

from __future__ import annotations

from rdrr_device.kernels import Access, Dispatch

_CACHES = frozenset({"k_cache", "v_cache"})
_STORES = frozenset({"kv_store", "kv_store_blocks", "place_rows"})  # which read no keys


def traffic(one: Dispatch, rows: int, base: int) -> int:
    """Bytes of weights and caches.

    Args:
        one: The dispatch.
        rows: Token rows of the pass.
        base: KV slots filled before it.
    """
    family = one.kernel.label.partition(".")[0]
    constants = dict(one.kernel.overrides)
    total = 0.0
    for binding, part in zip(one.kernel.bindings, one.buffers, strict=True):
        if binding.name.startswith("weight"):
            total += _weight_bytes(family, constants, part.size, rows)
        elif binding.name in _CACHES:
            slots = 0 if family in _STORES else _slots_read(constants, rows, base)
            slots += rows if binding.access is Access.READ_WRITE else 0
            total += slots * part.size / constants["CONTEXT"]
    return round(total)


def _weight_bytes(family: str, constants: dict[str, float | int], size: int, rows: int) -> float:
    if family == "embed":
        return min(1.0, rows / constants["OUTPUTS"]) * size
    if "EXPERTS" in constants:
        # Rows may share experts; as many as there are routes is the most that are read.
        return size * min(1.0, rows * constants["TOP_K"] / constants["EXPERTS"])
    return size


def _slots_read(constants: dict[str, float | int], rows: int, base: int) -> float:
    """KV slots that any row sees: the rows share them."""
    window = constants.get("WINDOW", 0)
    filled = min(base + rows, constants["CONTEXT"])
    return min(filled, window + rows - 1) if window else filled
