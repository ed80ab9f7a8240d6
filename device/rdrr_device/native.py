"""Raw calls into the C library wgpu-native, where the public API of wgpu-py is too slow.

    encode             recording one dispatch takes 3 to 7 us of Python through the public API, and
                       a third of that here
    trusted modules    naga adds a check to every loop and index of a shader; kernels that check
                       their own indices run up to twice as fast without them
    submit, read       the public API waits for everything that was submitted, in a thread of its
                       own; to keep the device busy the host must wait for a single submission

The unit of timestamps is read here too, since the public API does not expose it. All of this needs
internals of wgpu-py (tested with 0.32). If they are missing, `load` returns None and the caller
uses the public API. Errors in a recorded pass are reported when the pass is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

Launch = tuple[Any, Any, int, int, int]
"""C handles of the pipeline and the bind group, and the number of workgroups along x, y and z."""

AWAKE_SECONDS = 0.004
"""Longest time for which the host polls without sleeping. Beside an H200, a host that sleeps sees
the end of a submission 0.3 ms late."""


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
        # One callback serves all reads: creating one is slow, and its memory is never freed.
        self._mapped = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped
        )

    def encode(self, compute_pass: Any, launches: Sequence[Launch]) -> None:
        """Record dispatches into an open compute pass of wgpu-py."""
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
        """Submit one command buffer of wgpu-py and return the index of the submission."""
        buffers = self._ffi.new("WGPUCommandBuffer[]", [commands._internal])
        return int(self._api.libf.wgpuQueueSubmitForIndex(device.queue._internal, 1, buffers))

    def read(
        self, device: Any, staging: Any, size: int, submission: int, awake_after: int = 0
    ) -> bytearray | None:
        """Wait for a submission and return the first bytes of a mappable buffer.

        Later submissions are not waited for.

        Args:
            device: The `GPUDevice`.
            staging: Buffer that can be mapped for reading.
            size: Number of bytes.
            submission: Index of the submission that fills the buffer, from `submit`.
            awake_after: Index of an earlier submission, from whose end on the host polls without
                sleeping for up to `AWAKE_SECONDS`; 0 to sleep all the time.

        Returns:
            The bytes, or None if the device is lost.
        """
        ffi, lib, libf = self._ffi, self._lib, self._api.libf
        statuses: list[int] = []
        keep = ffi.new_handle(statuses)  # the callback needs it as long as the copy is under way
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = self._mapped
        info.userdata1 = keep
        buffer = staging._internal
        libf.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, size, info[0])
        if awake_after:
            self._poll_awake(device, statuses, awake_after)
        until, is_empty = ffi.new("WGPUSubmissionIndex *", submission), False
        while not (statuses or is_empty):  # wgpuDevicePoll returns early after a timeout
            is_empty = libf.wgpuDevicePoll(device._internal, True, until)
        if statuses != [lib.WGPUMapAsyncStatus_Success]:
            return None
        mapped = libf.wgpuBufferGetConstMappedRange(buffer, 0, size)
        data = bytearray(ffi.buffer(mapped, size))
        libf.wgpuBufferUnmap(buffer)
        return data

    def _poll_awake(self, device: Any, statuses: Sequence[int], submission: int) -> None:
        """Sleep until the end of a submission, then poll until there is a status."""
        poll = self._api.libf.wgpuDevicePoll
        poll(device._internal, True, self._ffi.new("WGPUSubmissionIndex *", submission))
        end = perf_counter() + AWAKE_SECONDS
        while not statuses and perf_counter() < end:
            poll(device._internal, False, self._ffi.NULL)

    def _on_mapped(self, status: int, message: Any, statuses: Any, unused: Any) -> None:
        del message, unused
        self._ffi.from_handle(statuses).append(int(status))

    def internals(self) -> tuple[Any, Any, Any]:
        """Return the cffi instance, the library and the wrapper module, for further raw calls."""
        return self._ffi, self._lib, self._api

    def timestamp_period(self, device: Any) -> float:
        """Return the nanoseconds per tick of the queue's timestamps."""
        return float(self._lib.wgpuQueueGetTimestampPeriod(device.queue._internal))

    def trusted_module(self, device: Any, label: str, code: str) -> Any:
        """Create a shader module without naga's runtime checks.

        naga validates the source as it does that of other modules; what it leaves out are the
        checks of indices and loops that it otherwise adds to the compiled shader.

        Raises:
            GPUValidationError: The source is not valid.
        """
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
        # cffi frees `text` and `name` with their Python objects, so both are kept until here.
        handle = api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)
        return api.GPUShaderModule(label, handle, device)


def load() -> Native | None:
    """Return the raw calls, or None if this version of wgpu-py does not have them."""
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
