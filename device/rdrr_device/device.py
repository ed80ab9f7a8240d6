"""A GPU device: its features and limits, buffers, transfers, submissions and counters.

All buffers are created here or in the modules that this one owns, and all pipelines and bind groups
in `rdrr_device.pipelines`, so the counters are exact. The caller decides what runs in which order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_device.adapters import AdapterInfo, choose
from rdrr_device.buffers import Buffer, BufferSlice, BufferUsage
from rdrr_device.capabilities import (
    DEFAULT_LIMITS,
    MATRIX_FEATURE,
    WANTED_FEATURES,
    Capabilities,
)
from rdrr_device.fences import WriteFences
from rdrr_device.handle import DeviceHandle, PassClock
from rdrr_device.implementations import implementation
from rdrr_device.implementations.interface import Implementation, WebGpuName
from rdrr_device.kernels import Dispatch, Kernel
from rdrr_device.mapped_buffers import MappedBuffers
from rdrr_device.pipelines import BoundDispatch, Pipelines, Recorder
from rdrr_device.readback import Fetch, Readback
from rdrr_device.submission import PassSubmitter, Submitter


class Device:
    """A device opened by `open_device`.

    Args:
        info: The adapter.
        gpu: The `GPUDevice` that was opened on it.
        features: Enabled features, by their names in wgpu; those of the `GPUDevice` when None.
        through: The implementation; the one that found the adapter when None.

    Attributes:
        handle: The state that the parts of this device share.
        wgpu: The `GPUDevice`.
        info: The adapter that the device was opened on.
        implementation: The implementation of WebGPU.
        features: Enabled features, by their names in wgpu.
        limits: Limits in force, by name with dashes.
        counters: Exact counts of GPU work.
        memory: Memory of the device's buffers.
        host: Host time of writes, submissions and reads.
    """

    def __init__(
        self,
        info: AdapterInfo,
        gpu: Any,
        features: frozenset[str] | None = None,
        through: Implementation | None = None,
    ) -> None:
        self.implementation = through or implementation(info.implementation)
        self.handle = DeviceHandle(gpu, info, self.implementation)
        self.wgpu = gpu
        self.info = info
        self.features = frozenset(gpu.features) if features is None else features
        self.limits: dict[str, int] = dict(gpu.limits)
        self.counters = self.handle.counters
        self.memory = self.handle.memory
        self.host = self.handle.host
        self._pipelines = Pipelines(
            gpu,
            self.implementation,
            self.counters,
            # Other programs compile for a software adapter too, but to test the shaders of GPUs.
            shares=info.software and self.handle.native is not None,
        )
        self._recorder = Recorder(self.handle.native)
        self._readback = Readback(self.handle)
        self._submitter: Submitter = PassSubmitter(self.handle, self._recorder)
        self._fences = WriteFences(self.handle, self._readback)
        self._mapped: MappedBuffers | None = None

    @property
    def timer(self) -> PassClock | None:
        """The timer that measures every compute pass; None if passes are not measured."""
        return self.handle.timer

    @timer.setter
    def timer(self, timer: PassClock | None) -> None:
        self.handle.timer = timer

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do, as far as a plan depends on it."""
        limits = {name: self.limits[name] for name in DEFAULT_LIMITS if name in self.limits}
        stated = self.info.capabilities
        matrices = stated.matrices if MATRIX_FEATURE in self.features else ()
        return replace(stated, features=self.features, limits=limits, matrices=matrices)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        """Return what raises the errors of a `with` block, see `Implementation.errors`."""
        return self.implementation.errors(what)

    @property
    def max_binding(self) -> int:
        """Size in bytes of the largest storage buffer that can be bound to a kernel."""
        return self.capabilities.max_binding

    @property
    def timestamp_period(self) -> float:
        """Nanoseconds per tick of a timestamp; WebGPU defines it as 1."""
        raw = self.handle.native
        return raw.timestamp_period(self.wgpu) if raw is not None else 1.0

    def create_buffer(self, label: str, size: int) -> Buffer:
        """Create a zeroed buffer of `size` bytes for storage and copies.

        Raises:
            DeviceError: The buffer is larger than `max_binding`, or memory is exhausted.
        """
        if size > self.max_binding:
            raise DeviceError(
                "buffer larger than the adapter can bind",
                where=label,
                expected=f"at most {self.max_binding} bytes",
                found=size,
            )
        self.memory.check(label, size)
        usage = BufferUsage.STORAGE | BufferUsage.COPY_DST | BufferUsage.COPY_SRC
        with self._errors(f"creating buffer {label}"):
            gpu = self.wgpu.create_buffer(label=label, size=size, usage=usage)
        self.counters.buffer_creates += 1
        self.memory.add(size)
        return Buffer(label, size, gpu)

    def free_buffer(self, buffer: Buffer) -> None:
        """Free a buffer immediately; using it afterwards is an error."""
        if buffer.gpu is not None:
            self.memory.add(-buffer.size)
            buffer.gpu.destroy()
            buffer.gpu = None

    def check_alive(self, part: BufferSlice) -> None:
        """Check that the buffer of a slice has not been freed.

        Raises:
            DeviceError: The buffer has been freed.
        """
        # wgpu-native aborts the process when work on a freed buffer is submitted.
        if part.buffer.gpu is None:
            raise DeviceError("the buffer has been freed", where=part.buffer.label)

    def write(self, target: BufferSlice, data: Any, offset: int = 0) -> None:
        """Copy host data into a slice, `offset` bytes after its start.

        Args:
            target: Destination.
            data: Contiguous array of a multiple of 4 bytes.
            offset: First byte to write, counted from the start of the slice.

        Raises:
            DeviceError: The data reaches beyond the slice, is not a multiple of 4 bytes, or the
                buffer has been freed.
        """
        size = memoryview(data).nbytes
        target.range(offset, size)
        self.check_alive(target)
        if size % 4:
            raise DeviceError(
                "the data to write is not a whole number of 32-bit words",
                expected="a multiple of 4 bytes",
                found=size,
            )
        if not size:
            return
        if self._mapped is not None and self._mapped.send(data, target.range(offset, size)):
            self.counters.bytes_written += size
            return
        self._fences.make_room(size)
        start = perf_counter()
        with self._errors("writing a buffer"):
            self.wgpu.queue.write_buffer(target.buffer.gpu, target.offset + offset, data)
        self.host.write += perf_counter() - start
        self.counters.bytes_written += size
        self._fences.add(size)

    @contextmanager
    def mapped_buffers(self, size: int, most: int) -> Iterator[MappedBuffers | None]:
        """Yield buffers for threads to fill; `write` copies what they hold on the device.

        What has been written from a buffer must not be read by the host any more.

        Args:
            size: Bytes of each buffer.
            most: Number of buffers.

        Yields:
            The buffers; None on a software adapter, which copies with the host's processors, and
            if there are no raw calls.
        """
        if self.handle.native is None or self.info.software:
            yield None
            return
        self._mapped = buffers = MappedBuffers(self.handle, self.handle.native, size, most)
        try:
            yield buffers
            buffers.flush()
        finally:
            self._mapped = None
            buffers.close()

    def _flush_mapped(self) -> None:
        if self._mapped is not None:
            self._mapped.flush()

    def clear(self, target: BufferSlice) -> None:
        """Fill a slice with zeros, in queue order with writes and submissions.

        Raises:
            DeviceError: The buffer has been freed, or the device is lost.
        """
        self.check_alive(target)
        self._flush_mapped()
        with self._errors("clearing a buffer"):
            encoder = self.wgpu.create_command_encoder(label="clear")
            encoder.clear_buffer(target.buffer.gpu, target.offset, target.size)
            self.wgpu.queue.submit([encoder.finish()])
        self.counters.submits += 1

    def wait(self) -> None:
        """Wait until all submitted work is done, which also frees the host copies of writes."""
        with self._errors("waiting for the device"):
            # wgpu 0.32 cannot wait for the queue itself (its callback has the wrong C type), so
            # submit a small copy and wait for that.
            self._readback.begin(()).collect()
        self._fences.clear()

    def fetch(self, *parts: BufferSlice) -> Fetch:
        """Start copying slices to the host once all work submitted so far is done.

        Work that is submitted later does not delay the copy.

        Raises:
            DeviceError: A buffer has been freed, or the device is lost.
        """
        for part in parts:
            self.check_alive(part)
        self._flush_mapped()
        with self._errors("reading a buffer"):
            return self._readback.begin(parts, fresh=self._submitter.fresh_staging)

    def read(
        self, source: BufferSlice, offset: int = 0, size: int | None = None
    ) -> npt.NDArray[np.uint8]:
        """Wait for all work submitted so far and return bytes of a slice.

        Args:
            source: Slice to read.
            offset: First byte, counted from the start of the slice.
            size: Number of bytes; up to the end of the slice when None.

        Raises:
            DeviceError: The range lies outside the slice, or the device is lost.
        """
        size = source.size - offset if size is None else size
        return self.fetch(source.range(offset, size)).collect()[0]

    def pipeline(self, kernel: Kernel) -> tuple[Any, Any]:
        """Return the compute pipeline of a kernel and its explicit bind group layout.

        They are created on first use.

        Raises:
            DeviceError: The shader does not compile, or the device does not support it.
        """
        return self._pipelines.get(kernel)

    def build_ahead(self, kernels: Iterable[Kernel]) -> None:
        """Start building the pipelines of kernels in other threads, see `Pipelines.build_ahead`."""
        self._pipelines.build_ahead(kernels)

    def is_built(self, kernel: Kernel) -> bool:
        """Return whether no other thread is building the pipeline of a kernel."""
        return self._pipelines.is_built(kernel)

    def bind(self, dispatch: Dispatch) -> BoundDispatch:
        """Create the pipeline and bind group of a dispatch.

        Raises:
            DeviceError: The buffers do not match the kernel's bindings, or one has been freed.
        """
        for part in dispatch.buffers:
            self.check_alive(part)
        return self._pipelines.bind(dispatch)

    def encode(self, compute_pass: Any, bound: Sequence[BoundDispatch], rows: int) -> None:
        """Record bound dispatches for `rows` token rows into an open compute pass."""
        self.counters.dispatches += self._recorder.record(compute_pass, bound, rows)

    def submit(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order, `times` times over, for `rows` token rows.

        This makes one submission, or several for a long prompt (see `PassSubmitter`). Within
        `submitting` the other submitter decides.

        Raises:
            DeviceError: A dispatch is invalid, or the device is lost.
        """
        self._flush_mapped()
        with self._errors("running a program"):
            start = perf_counter()
            self._submitter.run(bound, rows, times)
            self.host.submit += perf_counter() - start

    @contextmanager
    def submitting(self, submitter: Submitter) -> Iterator[None]:
        """Run programs through another submitter until the end of the `with` block."""
        before, self._submitter = self._submitter, submitter
        try:
            yield
        finally:
            self._submitter = before

    def close(self) -> None:
        """Free the device; neither it nor its buffers may be used afterwards."""
        self._recorder.clear()
        self._pipelines.clear()
        self._readback.close()
        self.wgpu.destroy()


def open_device(
    adapter: str | None = None,
    *,
    webgpu: WebGpuName = "wgpu",
    without: frozenset[str] = frozenset(),
    limits: Mapping[str, int] | None = None,
) -> Device:
    """Open a device on the best adapter, or on one whose name contains `adapter`.

    Args:
        adapter: Part of an adapter's name, backend or driver, in any case.
        webgpu: Name of the implementation of WebGPU.
        without: Features that stay disabled even if supported, so that tests reach generic paths.
        limits: Limits to request instead of the adapter's own, by name with dashes, so that tests
            can imitate a less capable adapter.

    Raises:
        DeviceError: There is no adapter, none matches, or the adapter does not open a device.
        UsageError: The implementation is not installed.
    """
    return open_adapter(choose(webgpu, adapter), without=without, limits=limits)


def open_adapter(
    info: AdapterInfo,
    *,
    without: frozenset[str] = frozenset(),
    limits: Mapping[str, int] | None = None,
) -> Device:
    """Open a device on an adapter that `list_adapters` found.

    Args:
        info: The adapter.
        without: Features that stay disabled even if supported.
        limits: Limits to request instead of the adapter's own, by name with dashes.

    Raises:
        DeviceError: The adapter does not open a device.
    """
    features = (WANTED_FEATURES & info.features) - without
    granted = {name: info.limits[name] for name in DEFAULT_LIMITS if name in info.limits}
    through = implementation(info.implementation)
    with through.errors(f"opening {info.name}"):
        try:
            gpu = through.request_device(info.handle, features, granted | dict(limits or {}))
        except RuntimeError as error:
            raise DeviceError(
                "the adapter does not open a device", where=info.name, found=error
            ) from error
    return Device(info, gpu, features, through)
