"""Turns a phase into one dispatch: the shader module with its entry point, and the launch size.

`rdrr_runtime.exec.executor` runs the dispatches.
"""

from __future__ import annotations

import re
from functools import cache

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import MAX_WORKGROUPS, Dispatch, Kernel
from rdrr_device.shaders import Access, Binding, compact, with_binding_numbers

from rdrr_runtime.phases.phase import FOLDER, Phase

_FUNCTION = re.compile(r"^fn phase\(([^)]*)\)", re.MULTILINE)
_NAME = re.compile(r"(\w+)\s*:")


def as_dispatch(phase: Phase, unless: BufferSlice | None = None) -> Dispatch:
    """Return the dispatch in which each workgroup makes one call of the phase's function.

    Args:
        phase: The phase.
        unless: A word, in a buffer that the phase does not bind: if it is not 0 when the dispatch
            begins, the phase does nothing. None if it always runs.
    """
    record, work = phase.record, phase.work
    is_flat = work.items > MAX_WORKGROUPS
    bindings, slices = phase.bindings, phase.slices
    constants = {"WG": record.threads, **record.constants}
    stop = None
    if unless is not None:
        stop = len(bindings)
        bindings = (*bindings, Binding("stopped", Access.READ))
        slices = (*slices, BufferSlice(unless.buffer, 0, unless.end))
        constants["STOPPED_AT"] = unless.offset // 4
    source = _shader(record.source, record.has_subgroups, is_flat, stop)
    if work.rows is not None and _takes_row(record.source):
        constants["ITEM_ROWS"] = work.rows
    if is_flat:
        constants["ITEMS"] = work.items
    values = tuple(sorted((name, float(value)) for name, value in constants.items()))
    kernel = Kernel(record.name, source, "main", values, bindings, record.trusted, record.general)
    return Dispatch(kernel, slices, work, phase.label, phase.tuning_keys)


@cache
def parameters(source: str) -> tuple[str, ...]:
    """Return the parameter names of the function `phase` in a shader."""
    signature = _FUNCTION.search(source)
    if signature is None:
        raise ValueError("the shader of a phase has no function `phase`")
    return tuple(_NAME.findall(signature[1]))


def _takes_row(source: str) -> bool:
    return "row" in parameters(source)


@cache
def _shader(source: str, has_subgroups: bool, is_flat: bool, stop: int | None) -> str:
    """Return the WGSL module, compact: the executor's declarations, the phase and the entry point.

    `stop` is the number of the binding that can stop the phase; None if there is none.
    """
    names = parameters(source)
    enable, source = source.split("\n", 1) if source.startswith("enable ") else ("", source)
    text = FOLDER.render(
        "launch.wgsl",
        PHASE=with_binding_numbers(source),
        PARAMETERS=names,
        SUBGROUPS=has_subgroups,
        FLAT=is_flat,
        STOP=stop,
    )
    return compact(f"{enable}\n{text}")
