"""Memory traffic: the bytes of weights and key-value cache that a phase cannot avoid moving.

Activations are not counted: they are small in comparison and mostly stay in the GPU's caches. The
count goes by the names of a phase's bindings (`weight...`, `k_cache`, `v_cache`), so a new phase is
counted if it uses these names.
"""

from __future__ import annotations

from rdrr_device.shaders import Access

from rdrr_runtime.phases.phase import Number, Phase
from rdrr_runtime.phases.products.requantize import Requantize

_CACHES = frozenset({"k_cache", "v_cache"})
_STORES = frozenset(  # which read no keys
    {"cache/kv_store", "cache/kv_store_blocks", "attention/norm_rope_store"}
)


def traffic(phase: Phase, rows: int, base: int) -> int:
    """Return the bytes of weights and caches that a phase reads or writes.

    Args:
        phase: The phase.
        rows: Token rows of the pass.
        base: Slots of the cache that are filled before the pass.
    """
    if not phase.work.serves(rows):
        return 0
    shader, constants = phase.record.shader, phase.record.constants
    total = 0.0
    for binding, part in zip(phase.bindings, phase.slices, strict=True):
        if binding.name.startswith("weight"):
            total += _weight_bytes(phase, part.size, rows)
        elif binding.name in _CACHES:
            slots = 0 if shader in _STORES else _slots_read(constants, rows, base)
            slots += rows if binding.access is Access.READ_WRITE else 0
            total += slots * part.size / constants["CONTEXT"]
    return round(total)


def _weight_bytes(phase: Phase, size: int, rows: int) -> float:
    record, constants = phase.record, phase.record.constants
    if isinstance(record, Requantize):
        # It may write only some of the rows that it binds.
        return record.formats[0].size(record.outputs, record.planes[0].row_units)
    if record.shader == "rows/embed":
        return min(1.0, rows / constants["OUTPUTS"]) * size
    if "EXPERTS" in constants:
        # An upper bound: rows that are routed to the same expert may share its weights.
        return size * min(1.0, rows * constants["TOP_K"] / constants["EXPERTS"])
    return size


def _slots_read(constants: dict[str, Number], rows: int, base: int) -> float:
    """Return the number of slots that at least one row attends to; the rows share their reads."""
    window = constants.get("WINDOW", 0)
    filled = min(base + rows, constants["CONTEXT"])
    return min(filled, window + rows - 1) if window else filled
