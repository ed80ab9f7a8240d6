"""A device with operands of arbitrary values, on which phases are timed alternately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from _script import keep_busy
from rdrr.bench.runs import open_device
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout, geometry

from published.baselines.weights import StoredWeight, upload_stored

if TYPE_CHECKING:
    from rdrr_device.arena import Arena
    from rdrr_device.buffers import BufferSlice
    from rdrr_device.device import Device
    from rdrr_device.timestamps import Timer
    from rdrr_runtime.phases.context import OpContext
    from rdrr_runtime.phases.phase import Phase
    from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

WARM_SECONDS = 0.2
"""Seconds of work before a measurement, to raise the clocks; not on software adapters."""

ARBITRARY_BYTES = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)


@dataclass(frozen=True)
class KernelBench:
    """A device for measuring kernels.

    Attributes:
        device: The device.
        arena: Owner of the operands' buffers.
        timer: Timer of GPU time.
    """

    device: Device
    arena: Arena
    timer: Timer

    def context(self, rows: int) -> OpContext:
        """Return the context of a step with `rows` token rows."""
        from rdrr_runtime.phases.context import OpContext
        from rdrr_runtime.phases.generation_state import State
        from rdrr_runtime.records import pack_step

        state = State.create(self.arena, rows, ring=4)
        self.device.write(state.step, pack_step([0] * rows, range(rows)))
        return OpContext(state, rows, replace(self.device.capabilities, software=False))

    def weight(self, dtype: str, layout: Layout, n: int, k: int) -> GpuWeight:
        """Upload an arbitrary matrix [n, k] for the kernels of the runtime."""
        from rdrr_runtime.phases.weights.packing import upload_weight

        raw = arbitrary_bits(dtype, layout, (n, k))
        return upload_weight(self.arena, DTYPES[dtype], layout, (n, k), raw, "weight")

    def stored(self, dtype: str, layout: Layout, n: int, k: int) -> StoredWeight:
        """Upload an arbitrary matrix [n, k] for the kernels of published systems."""
        raw = arbitrary_bits(dtype, layout, (n, k))
        return upload_stored(self.arena, dtype, layout, (n, k), raw, "weight")

    def floats(self, count: int) -> BufferSlice:
        """Return a buffer of `count` f32 zeros."""
        return self.arena.empty("operand", 4 * count)

    def times(
        self, programs: Sequence[Sequence[Phase]], rows: int, repeat: int
    ) -> list[list[float]]:
        """Measure programs alternately and return their seconds of GPU time.

        Args:
            programs: The phases of each program.
            rows: Token rows of the step.
            repeat: Number of measurements.

        Returns:
            For each program, the seconds of each measurement.
        """
        from rdrr_runtime.exec.executor import DispatchExecutor

        executor = DispatchExecutor(self.device)
        bound = [executor.prepare(program) for program in programs]
        self.timer.run(bound, rows)
        warm = 0.0 if self.device.info.software else WARM_SECONDS
        keep_busy(lambda: self.timer.run(bound, rows), warm)
        times: list[list[float]] = [[] for _ in bound]
        for _ in range(repeat):
            for done, seconds in zip(times, self.timer.run(bound, rows).seconds, strict=True):
                done.append(float(seconds))
        return times


def arbitrary_bits(dtype: str, layout: Layout, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return the stored bytes of a matrix [N, K] of arbitrary finite numbers."""
    kind = DTYPES[dtype]
    raw = np.resize(ARBITRARY_BYTES, geometry(kind, shape, layout).size)
    if not kind.is_block:
        # Keeps exponents small: an exponent of all ones would be an infinity or NaN.
        raw[kind.block_bytes - 1 :: kind.block_bytes] &= 0x3B
    return raw


@contextmanager
def open_kernel_bench(adapter: str | None) -> Iterator[KernelBench]:
    """Open a device for measuring kernels.

    Args:
        adapter: Part of the name of the adapter to use.

    Raises:
        DeviceError: There is no such adapter, or it has no timestamps.
    """
    from rdrr_device.arena import arena
    from rdrr_device.timestamps import Timer

    with open_device(adapter) as device, arena(device, "bench") as buffers:
        yield KernelBench(device, buffers, Timer(device))
