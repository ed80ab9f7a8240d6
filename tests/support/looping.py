"""An executor that launches few workgroups, each of which handles many items of a phase.

It shows that phases do not depend on how they are launched: a workgroup calls the same function
repeatedly, and its workgroup memory must carry nothing from one call to the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rdrr_device.arena import Arena
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Work
from rdrr_runtime.exec.executor import TokenPass
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.phase import Phase

_CONSTANTS = "override LOOP_ITEMS: u32;\noverride LOOP_CALLS: u32;\n"
_CALL = re.compile(r"^(phase\(.*\);)", re.MULTILINE)
_ENTRY = """@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    {subgroup_size}
    thread: Thread,
) {{
    for (var call = group.x; call < LOOP_CALLS; call += groups.x) {{
        let item = call % LOOP_ITEMS;
        {row}
        {call}
        workgroupBarrier();
    }}
}}
"""


def looped(phase: Phase, rows: int, groups: int) -> Dispatch:
    """Return a launch of at most `groups` workgroups that make all calls of a phase."""
    dispatch = as_dispatch(phase)
    head, entry = dispatch.kernel.source.split("@compute", 1)
    call = _CALL.search(entry)
    assert call is not None
    sized = "@builtin(subgroup_size) subgroup_size: u32,"
    text = head + _ENTRY.format(
        subgroup_size=sized if sized in entry else "",
        row="let row = call / LOOP_ITEMS * ITEM_ROWS;" if "row" in call[1] else "",
        call=call[1],
    )
    enable, rest = text.split("\n", 1) if text.startswith("enable ") else ("", text)
    calls = phase.work.count(rows)
    constants = (
        *dispatch.kernel.overrides,
        ("LOOP_CALLS", calls),
        ("LOOP_ITEMS", phase.work.items),
    )
    kernel = replace(
        dispatch.kernel,
        source=f"{enable}\n{_CONSTANTS}{rest}",
        overrides=tuple(sorted(constants)),
    )
    return replace(dispatch, kernel=kernel, work=Work(min(groups, calls)))


class LoopingExecutor:
    """An `Executor` that launches at most a given number of workgroups; see the module docstring.

    Args:
        device: The device to run on.
        groups: Largest number of workgroups per launch.
    """

    def __init__(self, device: Device, groups: int = 3) -> None:
        self.device = device
        self.gave_up = None
        self._groups = groups
        self._bound: dict[tuple[int, int], Any] = {}

    def prepare(self, phases: Sequence[Phase]) -> Any:
        return tuple(phases)

    def prepare_whole(self, token_pass: TokenPass) -> Any:
        return self.prepare(token_pass.phases)

    def another(self, arena: Arena) -> LoopingExecutor:
        del arena
        return LoopingExecutor(self.device, self._groups)

    def at_once(self, prepared: Any) -> int:
        del prepared
        return 1

    def recover(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def run(self, prepared: Any, rows: int, times: int = 1) -> None:
        key = (id(prepared), rows)
        if key not in self._bound:
            dispatches = [looped(dispatch, rows, self._groups) for dispatch in prepared]
            self._bound[key] = (
                prepared,
                tuple(self.device.bind(dispatch) for dispatch in dispatches),
            )
        self.device.submit(self._bound[key][1], rows, times)
