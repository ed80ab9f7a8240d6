"""GPU time of each dispatch of a program, from timestamp queries.

Every dispatch gets a compute pass of its own here, since WebGPU takes timestamps at the ends of
passes only; so the sum is somewhat longer than the same program in one pass, and what overlaps
there does not overlap here. What the figures are for is not this module's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_runtime.device import BoundDispatch, Device

FEATURE = "timestamp-query"
QUERIES = 4096
"""What a query set may hold."""


def dispatch_times(
    device: Device, bound: Sequence[BoundDispatch], rows: int
) -> npt.NDArray[np.float64]:
    """Run a program once; seconds of GPU time of each dispatch, in order.

    Raises:
        DeviceError: The device has no timestamps, or reports nothing but zeros.
    """
    import wgpu

    if FEATURE not in device.features:
        raise DeviceError("the adapter has no timestamp queries", where=device.info.name)
    gpu, step = device.wgpu, QUERIES // 2
    times: list[npt.NDArray[np.float64]] = []
    for first in range(0, len(bound), step):
        part = bound[first : first + step]
        count = 2 * len(part)
        queries = gpu.create_query_set(type="timestamp", count=count)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        resolved = gpu.create_buffer(size=8 * count, usage=usage)
        encoder = gpu.create_command_encoder(label="timed program")
        for index, one in enumerate(part):
            writes = {
                "query_set": queries,
                "beginning_of_pass_write_index": 2 * index,
                "end_of_pass_write_index": 2 * index + 1,
            }
            timed = encoder.begin_compute_pass(label=one.label, timestamp_writes=writes)
            device.encode(timed, [one], rows)
            timed.end()
        encoder.resolve_query_set(queries, 0, count, resolved, 0)
        gpu.queue.submit([encoder.finish()])
        ticks = np.frombuffer(gpu.queue.read_buffer(resolved), np.uint64).reshape(-1, 2)
        times.append((ticks[:, 1] - ticks[:, 0]).astype(np.float64) * 1e-9)
    found = np.concatenate(times) if times else np.zeros(0)
    if len(found) and not found.any():
        raise DeviceError("the adapter reports no time at all", where=device.info.name)
    return found
