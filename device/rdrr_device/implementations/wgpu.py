"""wgpu-native through wgpu-py, with raw calls into the C library where its public API is too slow.

The raw calls need internals of wgpu-py (tested with 0.32). If they are missing, the public API is
used.

    trusted modules    naga adds a check to every loop and index of a shader; kernels that check
                       their own indices run up to twice as fast without them
    timestamps         the public API does not say what their unit is
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar

from rdrr_format.errors import DeviceError

from rdrr_device.buffers import Bytes
from rdrr_device.implementations.c_declarations import kept_declarations
from rdrr_device.implementations.interface import (
    AWAKE_SECONDS,
    Implementation,
    RawCalls,
    WebGpuName,
)


class WgpuImplementation(Implementation):
    """wgpu-native.

    Raises:
        DeviceError: The package wgpu cannot be loaded.
    """

    name: ClassVar[WebGpuName] = "wgpu"
    aliased_writes = True
    language = frozenset(
        {
            "packed_4x8_integer_dot_product",
            "pointer_composite_access",
            "readonly_and_readwrite_storage_textures",
        }
    )
    """What naga has; wgpu-native does not list it."""

    def __init__(self) -> None:
        try:
            import wgpu
        except (ImportError, OSError) as error:
            raise DeviceError(
                "the package wgpu cannot be loaded",
                found=error,
                hint="use the CPU: `backend` cpu, or `device` cpu for a conversion",
            ) from None
        self.api = wgpu
        with kept_declarations():
            self.raw = self._calls = _raw_calls()
        self.builds_in_threads = self.raw is not None

    def adapters(self) -> Sequence[Any]:
        """See `Implementation.adapters`."""
        adapters: Sequence[Any] = self.api.gpu.enumerate_adapters_sync()
        return adapters

    def features(self, adapter: Any) -> frozenset[str]:
        """See `Implementation.features`."""
        return frozenset(adapter.features)

    def request_device(
        self, adapter: Any, features: Collection[str], limits: Mapping[str, int]
    ) -> Any:
        """See `Implementation.request_device`."""
        return adapter.request_device_sync(
            label="rdrr", required_features=sorted(features), required_limits=dict(limits)
        )

    def module(self, gpu: Any, label: str, source: str, *, trusted: bool) -> Any:
        """See `Implementation.module`."""
        if trusted and self._calls is not None:
            return self._calls.trusted_module(gpu, label, source)
        return gpu.create_shader_module(label=label, code=source)


class WgpuCalls(RawCalls):
    """Raw calls into wgpu-native; see `RawCalls`."""

    def __init__(self, ffi: Any, lib: Any, api: Any) -> None:
        super().__init__(ffi, lib, api)
        # One callback serves all reads: creating one is slow, and its memory is never freed.
        self._mapped = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._on_mapped
        )

    def submit(self, device: Any, commands: Any) -> int:
        """See `RawCalls.submit`."""
        buffers = self._ffi.new("WGPUCommandBuffer[]", [commands._internal])
        return int(self._api.libf.wgpuQueueSubmitForIndex(device.queue._internal, 1, buffers))

    def read(
        self, device: Any, staging: Any, size: int, submission: int, awake_after: int = 0
    ) -> Bytes | None:
        """See `RawCalls.read`."""
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
        data = self._copied(libf.wgpuBufferGetConstMappedRange(buffer, 0, size), size)
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
        """See `RawCalls.timestamp_period`; WebGPU defines it as 1, these are raw ticks."""
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


def _raw_calls() -> WgpuCalls | None:
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
            lib.wgpuBufferGetMappedRange,
            lib.WGPUMapAsyncStatus_Success,
            api.GPUShaderModule,
            api.error_handler,
            api.libf,
        )
    except (ImportError, AttributeError):
        return None
    return WgpuCalls(ffi, lib, api) if all(needed) else None
