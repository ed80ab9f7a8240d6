"""The option `executor`: whether the decode passes of a model run in one dispatch each.

The grid that an adapter can run is found by a test on the device. It is kept in the folder `grids`
of the user's cache, for the adapter and its driver. `rdrr tune` compares such passes with
dispatches and keeps the result in the tuned profile, where `auto` finds it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import DeviceError, FormatError
from rdrr_format.stores import replace_file, store_errors

from rdrr._tuned import TunedProfile, adapter_file, adapter_key, read_cached

if TYPE_CHECKING:
    from rdrr_device.adapters import AdapterInfo
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.compile.choice.decision import Decision
    from rdrr_runtime.exec.persistent.choice import Persistence
    from rdrr_runtime.phases.context import Grid

    from rdrr._load_options import ExecutorName

FORMAT = "rdrr-grid-4"
"""The number changes with the test: results of another one are not used."""

UNTUNED = (
    "the default; one dispatch is compared with it by `rdrr tune`, or while more than 2,048 tokens"
    " are decoded (auto)"
)
"""Why the pass of a model that was not tuned runs as dispatches."""

TUNED = "decode pass "
"""Beginning of the names of decode passes in a tuned profile."""

SOFTWARE_THREADS = 128
"""Threads of the only workgroup on a software adapter, where several cannot wait for each other."""


_THREADS = "max-compute-invocations-per-workgroup"

MAX_THREADS, MAX_GROUPS = 1024, 16384
"""The largest grid that is read from a file: `rdrr tune` tries up to twice the 512 threads and
8,192 workgroups that the test of an adapter tries."""


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


def persistence(
    device: Device, executor: ExecutorName, tuned: TunedExecutor | None = None
) -> Persistence | None:
    """Return how to run decode passes in one dispatch, or None to launch their phases.

    `auto` does what `rdrr tune` has found to be faster for the model. Without it, a process that
    decodes for long compares both on the GPU.

    Args:
        device: The device.
        executor: The option.
        tuned: What `rdrr tune` has found for the model; None if it was not tuned.

    Raises:
        DeviceError: `persistent` is asked for, and the adapter cannot do it.
    """
    from rdrr_runtime.exec.persistent.choice import Persistence

    best: tuple[Grid, ...] = () if tuned is None or tuned.grid is None else (tuned.grid,)
    best = tuple(grid for grid in best if grid.threads <= device.limits[_THREADS])
    if executor == "auto" and tuned is not None and best:
        return Persistence(best, tuned.reason)
    if executor == "auto" and tuned is None and not device.info.software:
        grid = _usable(device)
        return None if grid is None else Persistence((grid,), UNTUNED, compares=True)
    if executor != "persistent":
        return None
    grid = _usable(device)
    if grid is None:
        raise DeviceError(
            "this adapter cannot run a decode pass in one dispatch",
            where=device.info.name,
            found=describe(device.info),
            hint="use `executor` dispatches",
        )
    return Persistence(tuple(dict.fromkeys((*best, grid))), "`executor` is persistent")


def tuning_grids(device: Device) -> tuple[Grid, ...]:
    """Return the grids for `rdrr tune` to try; none if workgroups cannot wait for each other.

    Beside the tested grid there are half and twice as many threads in a workgroup, and workgroups
    of half the threads in twice the number. A trial shows which of them are resident together.
    """
    from rdrr_runtime.phases.context import Grid

    first = _usable(device)
    if first is None or device.info.software:
        return () if first is None else (first,)
    most = device.limits[_THREADS]
    threads, groups = first.threads, first.groups
    wanted = (
        first,
        Grid(threads // 2, groups),
        Grid(threads // 2, 2 * groups),
        Grid(2 * threads, groups),
        Grid(2 * threads, max(1, groups // 2)),
    )
    return tuple(grid for grid in wanted if grid.threads <= most)


def _usable(device: Device) -> Grid | None:
    """Return the grid that an adapter can run."""
    from rdrr_runtime.phases.context import Grid

    return Grid(SOFTWARE_THREADS, 1) if device.info.software else _tested(device).grid


@dataclass(frozen=True)
class TunedExecutor:
    """What `rdrr tune` has found for the decode pass of a model on an adapter.

    Attributes:
        grid: The grid on which one dispatch is faster; None if dispatches are.
        dispatches: Microseconds of the pass as dispatches.
        microseconds: Microseconds of the faster way.
    """

    grid: Grid | None
    dispatches: float
    microseconds: float

    @property
    def reason(self) -> str:
        """Why the pass runs as it does."""
        if self.grid is None:
            return f"{self.dispatches:.0f} us, which one dispatch did not beat (tuned, auto)"
        return f"{self.microseconds:.0f} us instead of {self.dispatches:.0f} us (tuned, auto)"

    def entry(self, candidates: int) -> dict[str, Any]:
        """Return the entry of the tuned profile; no workgroups stand for dispatches."""
        threads, groups = (0, 0) if self.grid is None else (self.grid.threads, self.grid.groups)
        return {
            "params": {"threads": threads, "groups": groups},
            "default_us": round(self.dispatches, 3),
            "us": round(self.microseconds, 3),
            "candidates": candidates,
        }


def tuned_executor(stored: TunedProfile, package: Package, kv_dtype: str) -> TunedExecutor | None:
    """Return what the tuned profile of an adapter says of a model's decode pass.

    Most profiles say nothing of any, and then the model's tensors need not be hashed.
    """
    if not any(name.startswith(TUNED) for name in stored.entries):
        return None
    entry = stored.entries.get(tuning_name(package, kv_dtype))
    if entry is None:
        return None
    grid = _stored_grid(*(entry["params"].get(name) for name in ("threads", "groups")))
    times = (entry.get(name) for name in ("default_us", "us"))
    before, after = (float(time) if isinstance(time, int | float) else 0.0 for time in times)
    return TunedExecutor(grid, before, after)


def tuning_name(package: Package, kv_dtype: str) -> str:
    """Return the name in a tuned profile of the decode pass of all models with these tensors.

    The name also depends on the code that runs a pass in one dispatch, so that a comparison with
    other code is not used.
    """
    from rdrr_runtime.exec.persistent.linking import FOLDER

    tensors = sorted(
        (name, tensor.dtype, tensor.layout or "row", list(tensor.shape))
        for name, tensor in package.manifest.tensors.items()
    )
    content = json.dumps([FOLDER.digest(), tensors])
    return f"{TUNED}{hashlib.sha256(content.encode()).hexdigest()[:12]} {kv_dtype}"


def executor_decision(tuned: TunedExecutor | None) -> Decision:
    """Return how `auto` runs the decode pass of a model, with the reason."""
    from rdrr_runtime.compile.choice.decision import Decision
    from rdrr_runtime.exec.persistent.choice import OP, title

    if tuned is None:
        return Decision("load", OP, "dispatches", UNTUNED)
    kernel = "dispatches" if tuned.grid is None else title(tuned.grid)
    return Decision("load", OP, kernel, tuned.reason)


def describe(info: AdapterInfo) -> str:
    """Return one line that says whether decode passes can run in one dispatch on an adapter."""
    from rdrr_runtime.exec.persistent.occupancy import unsupported

    reason = unsupported(info, info.features)
    if info.software:
        return f"with one workgroup: {reason}"
    if reason is not None:
        return f"no: {reason}"
    known = _read(info)
    return "not tested yet; `executor` persistent tests it" if known is None else str(known)


def _tested(device: Device) -> TestedGrid:
    """Return the grid of an adapter, from the user's cache or from a test."""
    from rdrr_runtime.exec.persistent.occupancy import find_grid

    known = _read(device.info)
    if known is None:
        known = TestedGrid(find_grid(device))
        _write(device.info, known)
    return known


def _read(info: AdapterInfo) -> TestedGrid | None:
    try:
        data = read_cached(adapter_file("grids", info))
        if data["format"] != FORMAT or data["adapter"] != adapter_key(info):
            return None
        if data["grid"] is None:
            return TestedGrid(None)
        threads, groups = data["grid"]
    except (OSError, FormatError, ValueError, KeyError, TypeError):
        return None  # it is only a cache
    grid = _stored_grid(threads, groups)
    return None if grid is None else TestedGrid(grid)


def _stored_grid(threads: object, groups: object) -> Grid | None:
    """Return the grid of two values in a file, or None if no adapter could have found it."""
    from rdrr_runtime.phases.context import Grid

    if type(threads) is not int or type(groups) is not int:
        return None
    is_possible = 0 < threads <= MAX_THREADS and 0 < groups <= MAX_GROUPS
    return Grid(threads, groups) if is_possible else None


def _write(info: AdapterInfo, tested: TestedGrid) -> None:
    path, grid = adapter_file("grids", info), tested.grid
    data = {
        "format": FORMAT,
        "adapter": adapter_key(info),
        "grid": None if grid is None else [grid.threads, grid.groups],
    }
    with store_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(data, indent=2).encode())
