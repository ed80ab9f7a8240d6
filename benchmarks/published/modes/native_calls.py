"""The calls of `published.modes.op_calls`, made directly to the C library beneath wgpu-py.

wgpu-py's wrappers take 20 to 120 us for the objects and the submission of one op, many times the
cost of the API itself, so a mode that makes these calls for each op would measure Python. The calls
and their order are the same here; only the descriptors are filled in once and reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rdrr_device.buffers import BufferSlice, BufferUsage
from rdrr_device.pipelines import BoundDispatch

from published.modes.op_calls import Op, op_of

SCOPE = "rdrr"
"""Name of the error scope for calls that bypass wgpu-py."""


@dataclass(frozen=True)
class Handles:
    """The C handles and descriptors of an op.

    Attributes:
        pipeline: Handle of the pipeline.
        group: Handle of the op's reusable bind group.
        group_descriptor: Descriptor for creating a new bind group.
        uniform_descriptor: Descriptor for creating the uniform buffer.
        content: Pointer to the content of the uniform buffer.
        size: Bytes of the content.
        kept: Objects that the descriptors point to and that must therefore stay alive.
    """

    pipeline: Any
    group: Any
    group_descriptor: Any
    uniform_descriptor: Any
    content: Any
    size: int
    kept: tuple[Any, ...]


class NativeCalls:
    """`OpCalls` through wgpu-native's C functions.

    Args:
        ffi: The cffi instance of wgpu-py.
        lib: The library handle of wgpu-py.
        api: The module of wgpu-py with the wrapper classes.
        gpu: The `GPUDevice`.
    """

    def __init__(self, ffi: Any, lib: Any, api: Any, gpu: Any) -> None:
        self._ffi, self._lib = ffi, lib
        self._checked, self._errors = api.libf, api.error_handler
        self._device, self._queue = gpu._internal, gpu.queue._internal
        self._plain_encoder = ffi.new("WGPUCommandEncoderDescriptor *")
        self._plain_pass = ffi.new("WGPUComputePassDescriptor *")
        self._timed_pass = ffi.new("WGPUComputePassDescriptor *")
        self._writes = ffi.new("WGPUPassTimestampWrites *")
        self._timed_pass.timestampWrites = self._writes
        self._plain_commands = ffi.new("WGPUCommandBufferDescriptor *")
        self._finished: list[Any] = []
        self._encoder: Any = None
        self._pass: Any = None

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Collect the errors of the calls in the block, and raise the last one at its end.

        Raises:
            GPUError: A call did not validate, or the device is lost.
        """
        import wgpu

        self._encoder = self._pass = None
        self._finished.clear()
        self._errors.capture(SCOPE)
        try:
            yield
        finally:
            error = self._errors.release(SCOPE)
        if error is not None:
            raise wgpu.GPUError(error[1])

    def prepare(self, bound: BoundDispatch, rows: int) -> Op:
        """See `OpCalls.prepare`."""
        op = op_of(bound, rows)
        content = self._ffi.from_buffer("char[]", op.content)
        uniform = self._ffi.new("WGPUBufferDescriptor *")
        uniform.usage = BufferUsage.UNIFORM | BufferUsage.COPY_DST
        uniform.size = op.content.nbytes
        entries = self._entries(bound.slices)
        group = self._ffi.new("WGPUBindGroupDescriptor *")
        group.layout = bound.layout._internal
        group.entries, group.entryCount = entries, len(bound.slices)
        handles = Handles(
            bound.pipeline._internal,
            bound.bind_group._internal,
            group,
            uniform,
            content,
            op.content.nbytes,
            (entries, op.content),
        )
        return replace(op, handles=handles)

    def _entries(self, buffers: Sequence[BufferSlice]) -> Any:
        entries = self._ffi.new("WGPUBindGroupEntry[]", len(buffers))
        for index, part in enumerate(buffers):
            entry = entries[index]
            entry.binding, entry.buffer = index, part.buffer.gpu._internal
            entry.offset, entry.size = part.offset, part.size
        return entries

    def uniform(self, op: Op) -> Any:
        """See `OpCalls.uniform`."""
        lib, handles = self._lib, op.handles
        buffer = lib.wgpuDeviceCreateBuffer(self._device, handles.uniform_descriptor)
        lib.wgpuQueueWriteBuffer(self._queue, buffer, 0, handles.content, handles.size)
        return self._ffi.gc(buffer, lib.wgpuBufferRelease)

    def bind(self, op: Op) -> Any:
        """See `OpCalls.bind`."""
        lib = self._lib
        group = lib.wgpuDeviceCreateBindGroup(self._device, op.handles.group_descriptor)
        return self._ffi.gc(group, lib.wgpuBindGroupRelease)

    def begin(self, writes: Mapping[str, Any] | None) -> None:
        """See `OpCalls.begin`."""
        lib, descriptor = self._lib, self._plain_pass
        if self._encoder is None:
            self._encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, self._plain_encoder)
        if writes is not None:
            descriptor, timestamps = self._timed_pass, self._writes
            timestamps.querySet = writes["query_set"]._internal
            timestamps.beginningOfPassWriteIndex = writes["beginning_of_pass_write_index"]
            timestamps.endOfPassWriteIndex = writes["end_of_pass_write_index"]
        self._pass = lib.wgpuCommandEncoderBeginComputePass(self._encoder, descriptor)

    def dispatch(self, op: Op, group: Any = None) -> None:
        """See `OpCalls.dispatch`."""
        lib, handles, handle = self._lib, op.handles, self._pass
        lib.wgpuComputePassEncoderSetPipeline(handle, handles.pipeline)
        group = handles.group if group is None else group
        lib.wgpuComputePassEncoderSetBindGroup(handle, 0, group, 0, self._ffi.NULL)
        lib.wgpuComputePassEncoderDispatchWorkgroups(handle, *op.counts)

    def end(self) -> None:
        """See `OpCalls.end`."""
        self._lib.wgpuComputePassEncoderEnd(self._pass)
        self._lib.wgpuComputePassEncoderRelease(self._pass)

    def finish(self) -> None:
        """See `OpCalls.finish`."""
        lib, encoder, self._encoder = self._lib, self._encoder, None
        try:
            # This call raises on invalid commands; submitting them would end the process.
            commands = self._checked.wgpuCommandEncoderFinish(encoder, self._plain_commands)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        self._finished.append(self._ffi.gc(commands, lib.wgpuCommandBufferRelease))

    def submit(self) -> None:
        """See `OpCalls.submit`."""
        commands = self._ffi.new("WGPUCommandBuffer[]", self._finished)
        self._lib.wgpuQueueSubmit(self._queue, len(self._finished), commands)
        self._finished.clear()
