"""The option `executor`: whether the decode passes of a model run in one dispatch each.

The grid that an adapter can run is found by a test on the device. It is kept in the folder `grids`
of the user's cache, for the adapter and its driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError
from rdrr_format.stores import replace_file, store_errors

from rdrr._tuned import adapter_file, adapter_key

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.device import Device
    from rdrr_runtime.exec.persistent.choice import Persistence
    from rdrr_runtime.phases.context import Grid

    from rdrr._load_options import ExecutorName

FORMAT = "rdrr-grid-1"

SOFTWARE_THREADS = 128
"""Threads of the only workgroup on a software adapter, where several cannot wait for each other."""


@dataclass(frozen=True)
class TestedGrid:
    """The result of the test of an adapter.

    Attributes:
        grid: The workgroups that can wait for each other; None if they cannot.
    """

    grid: Grid | None

    def __str__(self) -> str:
        if self.grid is None:
            return "no: the test of the adapter failed"
        return f"yes: {self.grid.groups} workgroups of {self.grid.threads} threads"


def persistence(device: Device, executor: ExecutorName) -> Persistence | None:
    """Return how to run decode passes in one dispatch, or None to launch their phases.

    `auto` launches the phases, which is as fast on the GPU measured (docs/PERFORMANCE_LOG.md).

    Raises:
        DeviceError: `persistent` is asked for, and the adapter cannot do it.
    """
    if executor != "persistent":
        return None
    from rdrr_runtime.exec.persistent.choice import Persistence
    from rdrr_runtime.phases.context import Grid

    reason = "`executor` is persistent"
    if device.info.software:
        return Persistence((Grid(SOFTWARE_THREADS, 1),), reason)
    found = _tested(device)
    if found.grid is None:
        raise DeviceError(
            "this adapter cannot run a decode pass in one dispatch",
            where=device.info.name,
            found=describe(device.info),
            hint="use `executor` dispatches",
        )
    return Persistence((found.grid,), reason)


def describe(info: AdapterInfo) -> str:
    """Return one line that says whether decode passes can run in one dispatch on an adapter."""
    from rdrr_runtime.exec.persistent.residency import unsupported

    reason = unsupported(info.features, software=info.software)
    if info.software:
        return f"with one workgroup: {reason}"
    if reason is not None:
        return f"no: {reason}"
    known = _read(info)
    return "not tested yet; `executor` persistent tests it" if known is None else str(known)


def _tested(device: Device) -> TestedGrid:
    """Return the grid of an adapter, from the user's cache or from a test."""
    from rdrr_runtime.exec.persistent.residency import find_grid

    known = _read(device.info)
    if known is None:
        known = TestedGrid(find_grid(device))
        _write(device.info, known)
    return known


def _read(info: AdapterInfo) -> TestedGrid | None:
    from rdrr_runtime.phases.context import Grid

    try:
        data = json.loads(adapter_file("grids", info).read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["adapter"] != adapter_key(info):
            return None
        if data["grid"] is None:
            return TestedGrid(None)
        threads, groups = data["grid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is only a cache
    valid = type(threads) is int and type(groups) is int and threads > 0 and groups > 0
    return TestedGrid(Grid(threads, groups)) if valid else None


def _write(info: AdapterInfo, found: TestedGrid) -> None:
    path, grid = adapter_file("grids", info), found.grid
    data = {
        "format": FORMAT,
        "adapter": adapter_key(info),
        "grid": None if grid is None else [grid.threads, grid.groups],
    }
    with store_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(data, indent=2).encode())
