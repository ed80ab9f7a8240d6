"""Places where the public wgpu API is too slow, through the C library beneath it.

    encode             one launch costs 3 to 7 us of Python through the public API, a third here
    trusted modules    naga bounds every loop and index of a shader; kernels that guard their own
                       indices can do without, and run up to twice as fast
    submit, read       the public API waits for all that was submitted, in a thread of its own; to
                       keep the device busy the host must wait for one submission alone

Beside them the unit of timestamps, which the public API does not tell. All need internals of
wgpu-py (tried with 0.32). Where those are missing, `load` returns None and the caller goes through
the public API. Errors of a recorded pass surface when it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Launch = tuple[Any, Any, int, int, int]
"""C handles of pipeline and bind group, and the workgroup counts."""


class Native:
    """Raw calls into wgpu-native.

    Args:
        ffi: The cffi instance of wgpu-py.
        lib: Its library handle.
        api: The module with the wrapper classes.
    """

    def __init__(self, ffi: Any, lib: Any, api: Any) -> None:
        self._ffi = ffi
        self._lib = lib
        self._api = api
        # One for all readings: making a callback is slow, and the memory of each is kept.
        self._mapped = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped
        )

    def encode(self, compute_pass: Any, launches: Sequence[Launch]) -> None:
        """Record launches into an open compute pass of wgpu-py."""
        lib, null, handle = self._lib, self._ffi.NULL, compute_pass._internal
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        last = None
        for pipeline, group, x, y, z in launches:
            if pipeline is not last:
                set_pipeline(handle, pipeline)
                last = pipeline
            set_bind_group(handle, 0, group, 0, null)
            dispatch(handle, x, y, z)

    def submit(self, device: Any, commands: Any) -> int:
        """Submit one command buffer of wgpu-py; the number of the submission."""
        buffers = self._ffi.new("WGPUCommandBuffer[]", [commands._internal])
        return int(self._api.libf.wgpuQueueSubmitForIndex(device.queue._internal, 1, buffers))

    def read(self, device: Any, staging: Any, size: int, submission: int) -> bytearray | None:
        """The first bytes of a mappable buffer after a submission; None where the device is lost.

        Later submissions are not waited for.
        """
        ffi, lib, libf = self._ffi, self._lib, self._api.libf
        statuses: list[int] = []
        keep = ffi.new_handle(statuses)
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = self._mapped
        info.userdata1 = keep
        buffer = staging._internal
        libf.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, size, info[0])
        until, is_empty = ffi.new("WGPUSubmissionIndex *", submission), False
        while not (statuses or is_empty):  # a wait gives up after a while
            is_empty = libf.wgpuDevicePoll(device._internal, True, until)
        if statuses != [lib.WGPUMapAsyncStatus_Success]:
            return None
        mapped = libf.wgpuBufferGetConstMappedRange(buffer, 0, size)
        data = bytearray(ffi.buffer(mapped, size))
        libf.wgpuBufferUnmap(buffer)
        return data

    def _on_mapped(self, status: int, message: Any, statuses: Any, unused: Any) -> None:
        del message, unused
        self._ffi.from_handle(statuses).append(int(status))

    def internals(self) -> tuple[Any, Any, Any]:
        """Return the cffi instance, the library and the wrapper module, for further raw calls."""
        return self._ffi, self._lib, self._api

    def timestamp_period(self, device: Any) -> float:
        """Nanoseconds of a tick of the queue's timestamps."""
        return float(self._lib.wgpuQueueGetTimestampPeriod(device.queue._internal))

    def trusted_module(self, device: Any, label: str, code: str) -> Any:
        """A shader module without naga's checks; `code` must have been validated before."""
        ffi, lib, api = self._ffi, self._lib, self._api
        source = ffi.new("WGPUShaderSourceWGSL *")
        text = ffi.new("char[]", code.encode())
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        source.code.data = text
        source.code.length = len(text) - 1
        name = ffi.new("char[]", label.encode())
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data = name
        descriptor.label.length = len(name) - 1
        handle = lib.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)
        return api.GPUShaderModule(label, handle, device)


def load() -> Native | None:
    """The raw calls, or None where this wgpu-py does not have them."""
    try:
        from wgpu.backends.wgpu_native import _api as api
        from wgpu.backends.wgpu_native._ffi import ffi, lib

        needed = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
            lib.wgpuDeviceCreateShaderModuleTrusted,
            lib.wgpuQueueGetTimestampPeriod,
            lib.wgpuQueueSubmitForIndex,
            lib.wgpuDevicePoll,
            lib.wgpuBufferMapAsync,
            lib.wgpuBufferGetConstMappedRange,
            lib.WGPUMapAsyncStatus_Success,
            api.GPUShaderModule,
            api.error_handler,
            api.libf,
        )
    except (ImportError, AttributeError):
        return None
    return Native(ffi, lib, api) if all(needed) else None
