"""A prototype: the search of Q4_K on a GPU, with the bits of the CPU's.

It stands for `rdrr_format.codecs._affine.search_groups` without importance weights; the rest of
the codec stays on the CPU. Groups that the kernel does not cover (see `search_affine.wgsl`) are
searched by the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs._affine import Search, search_groups
from rdrr_runtime.device import open_device

Floats = npt.NDArray[np.float32]

_GROUP, _LANES, _WIDEST = 32, 64, 65_535
_UNIFORM = 16 + 16 * 16


class GpuSearch:
    """Buffers and pipeline for up to `capacity` groups at a time.

    Args:
        capacity: Groups.
        adapter: Part of an adapter's name.
    """

    def __init__(self, capacity: int, adapter: str | None = None) -> None:
        import wgpu

        self.device = open_device(adapter)
        self.odd = 0
        gpu = self.device.wgpu
        usage = wgpu.BufferUsage
        self._capacity = capacity
        self._weights = gpu.create_buffer(
            size=capacity * _GROUP * 4, usage=usage.STORAGE | usage.COPY_DST
        )
        self._found = gpu.create_buffer(size=capacity * 16, usage=usage.STORAGE | usage.COPY_SRC)
        self._read = gpu.create_buffer(size=capacity * 16, usage=usage.MAP_READ | usage.COPY_DST)
        self._search = gpu.create_buffer(size=_UNIFORM, usage=usage.UNIFORM | usage.COPY_DST)
        source = Path(__file__).with_name("search_affine.wgsl").read_text(encoding="utf-8")
        self._pipeline = gpu.create_compute_pipeline(
            layout="auto",
            compute={"module": gpu.create_shader_module(code=source), "entry_point": "main"},
        )
        buffers = (self._weights, self._found, self._search)
        self._bindings = gpu.create_bind_group(
            layout=self._pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
                for i, buffer in enumerate(buffers)
            ],
        )

    def upload(self, groups: Floats, nmax: int, search: Search) -> None:
        """Put groups [n, 32] where the kernel reads them."""
        queue = self.device.wgpu.queue
        queue.write_buffer(self._weights, 0, np.ascontiguousarray(groups))
        queue.write_buffer(self._search, 0, _parameters(len(groups), nmax, search))

    def run(self, count: int, times: int = 1) -> None:
        """Search `count` groups, several times when it is to be timed."""
        gpu = self.device.wgpu
        encoder = gpu.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, self._bindings)
        workgroups = -(-count // _LANES)
        wide = min(workgroups, _WIDEST)
        for _ in range(times):
            compute.dispatch_workgroups(wide, -(-workgroups // wide))
        compute.end()
        encoder.copy_buffer_to_buffer(self._found, 0, self._read, 0, count * 16)
        gpu.queue.submit([encoder.finish()])

    def download(self, count: int) -> Floats:
        """What was found, float32 [count, 4]; waits for it."""
        from wgpu import MapMode

        self._read.map_sync(MapMode.READ, 0, count * 16)
        try:
            raw: Any = self._read.read_mapped(0, count * 16)
            return np.frombuffer(raw, np.float32).reshape(count, 4)
        finally:
            self._read.unmap()

    def __call__(
        self, groups: Floats, weights: Floats | None, nmax: int, search: Search
    ) -> tuple[Floats, Floats, Floats]:
        """As `search_groups`."""
        assert weights is None, "the prototype has no importance weights"
        parts = [
            self._part(groups[first : first + self._capacity], nmax, search)
            for first in range(0, len(groups), self._capacity)
        ]
        found = np.concatenate(parts)
        odd = np.flatnonzero(found[:, 2] < 0)
        scales, mins, chosen = (np.ascontiguousarray(found[:, at]) for at in (0, 1, slice(2, 4)))
        self.odd += len(odd)
        if len(odd):
            scales[odd], mins[odd], chosen[odd] = search_groups(groups[odd], None, nmax, search)
        return scales, mins, chosen

    def _part(self, groups: Floats, nmax: int, search: Search) -> Floats:
        self.upload(groups, nmax, search)
        self.run(len(groups))
        return self.download(len(groups))


def _parameters(count: int, nmax: int, search: Search) -> npt.NDArray[np.uint8]:
    """The uniform; numerators are rounded as the CPU's loop rounds them."""
    steps = np.arange(search.nstep + 1, dtype=np.float32)
    numerators = np.zeros(64, np.float32)
    numerators[: search.nstep + 1] = (
        np.float32(search.rmin) + np.float32(search.rdelta) * steps + np.float32(nmax)
    )
    head = np.array([count, 0, 0, search.nstep + 1], np.uint32)
    head[2:3] = np.array([nmax], np.float32).view(np.uint32)
    return np.concatenate([head.view(np.uint8), numerators.view(np.uint8)])
