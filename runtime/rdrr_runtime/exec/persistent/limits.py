"""What a device must allow a pass in one dispatch: its memory, its bindings, and its loops."""

from __future__ import annotations

from collections.abc import Sequence

from rdrr_device.device import Device
from rdrr_device.shaders import storage_bindings

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.persistent.linking import WAITS, Linked
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase

MOST_ROWS = 8
"""Most rows of a pass in one dispatch; more were not measured."""

SOFTWARE_ITERATIONS = 32_768
"""Most iterations of a thread's loops on a software adapter. Mesa's ends the loops of a shader
after 65,535 in all, without a word; this counts only those over tiles and rows."""


def check_limits(linked: Linked, device: Device) -> None:
    """Check that a device has the workgroup memory and the bindings of a pass.

    Raises:
        UnlinkableError: It has not.
    """
    memory = device.limits["max-compute-workgroup-storage-size"]
    if linked.workgroup_bytes > memory:
        raise UnlinkableError(
            f"the pass needs {linked.workgroup_bytes} bytes of workgroup memory of {memory}"
        )
    # A phase that is launched behind the pass binds one buffer more, the gate.
    bindings = max(len(storage_bindings(linked.source)), MAX_BUFFERS + 1)
    if bindings > device.limits["max-storage-buffers-per-shader-stage"]:
        raise UnlinkableError(f"the pass binds {bindings} buffers")


def check_rows(whole: Pass, device: Device) -> None:
    """Check that one dispatch pays for a pass of several rows, and that it can be one.

    Nobody writes the rows that a step does not have, so the pass must not wait for them.

    Raises:
        UnlinkableError: It has too many rows, or may read others than those of the step.
    """
    if whole.rows > MOST_ROWS:
        raise UnlinkableError(f"it has {whole.rows} rows, more than {MOST_ROWS}")
    if whole.rows > 1 and not device.info.aliased_writes:
        # A step of 8 rows of llama-1b takes 1.23 ms through Dawn on an H200, as dispatches 1.09.
        raise UnlinkableError("single words of several rows take longer than dispatches")
    for phase in whole.linkable if whole.rows > 1 else ():
        if phase.work.rows != 1 and not phase.record.fills:
            raise UnlinkableError(f"{phase.label} may read rows that a step does not have")


def check_waits(whole: Pass, linked: Linked) -> None:
    """Check that a pass of several rows leaves no values in memory.

    On an H200 a step of 8 rows of llama-1b took 1,441 us with 116 waits, and 1,028 as dispatches.

    Raises:
        UnlinkableError: Its workgroups would have to wait for all others.
    """
    waits = int(linked.table[:, WAITS].sum())
    if whole.rows > 1 and waits:
        raise UnlinkableError(f"its workgroups would wait for all others {waits} times")


def check_loops(phases: Sequence[Phase], grid: Grid, device: Device) -> None:
    """Check that an adapter does not end the loops of a pass too early.

    Raises:
        UnlinkableError: It may.
    """
    if not device.info.software:
        return
    iterations = 0
    for phase in phases:
        constants = phase.record.constants
        trips = [int(value) for name, value in constants.items() if name.startswith("TRIPS")]
        calls = -(-phase.work.items // grid.groups)
        iterations += calls * int(constants.get("STEPS", 1)) * max(trips, default=1)
    if iterations > SOFTWARE_ITERATIONS:
        raise UnlinkableError(
            f"a software adapter may end loops of {iterations} iterations too early"
        )
