"""The test of an adapter: which workgroups can wait for each other in one dispatch.

WebGPU does not promise that the workgroups of a dispatch run at the same time, nor that one sees
what another has written. A dispatch that needs both shows whether an adapter can, and the largest
one that succeeds shows how many workgroups it holds.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from rdrr_device.adapters import AdapterInfo
from rdrr_device.arena import Arena, arena
from rdrr_device.capabilities import COHERENT_FEATURE
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import storage_bindings, with_binding_numbers

from rdrr_runtime.exec.persistent.executor import GATE_BYTES
from rdrr_runtime.exec.persistent.handover import BINDINGS, EMPTY, SWIZZLED, empty_words
from rdrr_runtime.exec.persistent.linking import FOLDER
from rdrr_runtime.phases.context import Grid

THREADS = 512
"""Threads of a workgroup, if the device allows as many. The registers of a pass leave room for
one workgroup on a multiprocessor; on an H200 llama-1b ran 15 % faster with 512 threads than with
256."""

RESIDENT = 2048
"""Threads that a multiprocessor holds if nothing but threads limits it; the grid gets one workgroup
for each multiprocessor."""

MOST_GROUPS = 8192
ROUNDS = 32
POLLS = 1 << 14


def unsupported(info: AdapterInfo, features: Collection[str]) -> str | None:
    """Return why workgroups cannot wait for each other; None if a test may show that they can.

    Args:
        info: The adapter.
        features: Its features, or those enabled on a device.
    """
    if info.software:
        return "the workgroups of a software adapter do not run at the same time"
    if info.aliased_writes and COHERENT_FEATURE not in features:
        return f"the adapter lacks the feature {COHERENT_FEATURE}"
    if not info.aliased_writes and info.backend != "Vulkan":
        return f"atomic words were tested with Vulkan, not with {info.backend}"
    return None


def find_grid(device: Device) -> Grid | None:
    """Return the grid for passes in one dispatch, or None if workgroups cannot wait for each other.

    The number of workgroups is found by tests on the device, which take some milliseconds.

    Raises:
        DeviceError: The device is lost.
    """
    if unsupported(device.info, device.features) is not None:
        return None
    threads = min(THREADS, device.limits["max-compute-invocations-per-workgroup"])
    with arena(device, "grid test") as owner:
        test = _Test(device, owner, threads)
        works, fails = 1, MOST_GROUPS + 1
        if not test.passes(works):
            return None
        while works + 1 < fails:
            # Doubling finds the order of magnitude before halving finds the number.
            middle = (
                min(2 * works, (works + fails) // 2)
                if fails > MOST_GROUPS
                else (works + fails) // 2
            )
            if test.passes(middle):
                works = middle
            else:
                fails = middle
    return Grid(threads, max(1, works * threads // RESIDENT))


class _Test:
    """The dispatch of grid_test.wgsl on one device."""

    def __init__(self, device: Device, owner: Arena, threads: int) -> None:
        self._device = device
        self._gate, self._wrong = owner.empty("gate", GATE_BYTES), owner.empty("wrong", 4)
        words = empty_words(ROUNDS * MOST_GROUPS)
        self._words = owner.empty("words", words.nbytes)
        values = owner.empty("values", 4 * MOST_GROUPS)
        source = FOLDER.render(
            "grid_test.wgsl",
            ROUNDS=ROUNDS,
            WG=threads,
            EMPTY=EMPTY,
            HALF_WORDS=words.size,
            ALIASED=device.info.aliased_writes,
            SWIZZLED=SWIZZLED,
        )
        bindings = storage_bindings(source)
        self._kernel = Kernel("grid test", with_binding_numbers(source), "main", (), bindings)
        buffers = {"gate": self._gate, "values": values, "wrong": self._wrong}
        buffers |= dict.fromkeys(BINDINGS, self._words)
        self._buffers = tuple(buffers[binding.name] for binding in bindings)

    def passes(self, groups: int) -> bool:
        """Return whether that many workgroups meet and see each other's values."""
        device = self._device
        device.write(self._gate, np.array([0, 0, 0, POLLS], np.uint32))
        device.write(self._words, empty_words(ROUNDS * groups))
        device.clear(self._wrong)
        bound = device.bind(Dispatch(self._kernel, self._buffers, Work(groups), "grid test"))
        device.submit((bound,), 1)
        gate, wrong = (
            part.view(np.uint32) for part in device.fetch(self._gate, self._wrong).collect()
        )
        return not gate[2] and not wrong[0]
