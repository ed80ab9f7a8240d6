"""Dawn through wgpudawn, which needs internals of that package (tested with 0.32.0.4).

Dawn differs from wgpu-native in this:

    index checks    Tint adds them to all modules of a device or to none. All have them here, also
                    those whose kernels check their own indices: Vulkan's robust buffer access makes
                    them nearly free where a driver has it (Dawn's toggle
                    `vulkan_use_buffer_robust_access_2`, on by default)
    coherence       Tint has no `@coherent`, and with the Vulkan memory model, which matrices of
                    subgroups need, workgroups see only the atomic words of others
    errors          wgpudawn collects them in one list for all threads, see `_PendingErrors`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import local
from time import perf_counter
from typing import Any, ClassVar, get_args

from rdrr_format.errors import DeviceError
from rdrr_format.extras import import_extra

from rdrr_device.buffers import Bytes
from rdrr_device.capabilities import MATRIX_FEATURE, MatrixShape, Scalar
from rdrr_device.implementations.interface import (
    AWAKE_SECONDS,
    Implementation,
    RawCalls,
    WebGpuName,
)
from rdrr_device.shaders import WgslCompiler, for_compiler

VERSION = "0.32.0.4"
"""The version of wgpudawn whose internals are used; the extra `dawn` has it, too."""

_NAMES = {"subgroups": "subgroup", "chromium-experimental-subgroup-matrix": MATRIX_FEATURE}
_DAWN_NAMES = {ours: theirs for theirs, ours in _NAMES.items()}
"""Features whose names differ."""

THREADS = "implicit-device-synchronization"
"""Feature of Dawn without which a device may not be used from several threads."""

_INSTANCE_TOGGLES = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")
"""The first one allows the extension of `for_compiler`; Dawn switches f16 off on NVIDIA without the
second one."""

_DEVICE_TOGGLES = ("enable_integer_range_analysis_in_robustness",)
"""What leaves out index checks that Tint can prove to be superfluous."""

_NO_DEVICE_TOGGLES = ("enable_spirv_validation", "timestamp_quantization")
"""What tests Tint's output, and what makes timestamps coarse, so that web pages learn less."""

_LANGUAGE = {
    "Packed4x8IntegerDotProduct": "packed_4x8_integer_dot_product",
    "PointerCompositeAccess": "pointer_composite_access",
    "ReadonlyAndReadwriteStorageTextures": "readonly_and_readwrite_storage_textures",
    "SubgroupId": "subgroup_id",
    "SubgroupUniformity": "subgroup_uniformity",
    "UniformBufferStandardLayout": "uniform_buffer_standard_layout",
    "UnrestrictedPointerParameters": "unrestricted_pointer_parameters",
}
"""WGSL language features by the ends of their names in Dawn's C header."""

SLICE_NS = 100_000_000
"""Longest wait in one call, between which Python can handle signals."""


class DawnImplementation(Implementation):
    """Dawn.

    Raises:
        DeviceError: wgpudawn is of a version whose internals differ.
        UsageError: wgpudawn is not installed.
    """

    name: ClassVar[WebGpuName] = "dawn"
    raw: DawnCalls

    def __init__(self) -> None:
        self.api = import_extra("wgpudawn", "dawn", "`webgpu` dawn")
        try:
            from wgpudawn.backends.dawn import _api, _helpers, extras
            from wgpudawn.backends.dawn._ffi import ffi, lib

            self._extras = extras
            _guard_errors(_api, _helpers)
            if _helpers._the_instance is None:
                extras.set_instance_extras(enable_toggles=_INSTANCE_TOGGLES)
            self.raw = DawnCalls(ffi, lib, _api)
            self.language = _language(lib, _api.get_wgpu_instance())
        except (ImportError, AttributeError) as error:
            raise DeviceError(
                "this version of the package wgpudawn cannot be used",
                expected=VERSION,
                found=f"{getattr(self.api, '__version__', 'an unknown one')}: {error}",
                hint=f"pip install wgpudawn=={VERSION}, or use `webgpu` wgpu",
            ) from error
        self.builds_in_threads = True

    def adapters(self) -> Sequence[Any]:
        """See `Implementation.adapters`."""
        adapters: Sequence[Any] = self.api.gpu.enumerate_adapters_sync()
        return adapters

    def features(self, adapter: Any) -> frozenset[str]:
        """See `Implementation.features`."""
        return frozenset(_NAMES.get(name, name) for name in adapter.features)

    def subgroup_sizes(self, adapter: Any) -> tuple[int, int] | None:
        """See `Implementation.subgroup_sizes`; wgpudawn 0.32 leaves them out."""
        info = self.raw.adapter_info(adapter)
        return (info.subgroupMinSize, info.subgroupMaxSize) if info.subgroupMinSize else None

    def matrices(self, adapter: Any) -> tuple[MatrixShape, ...]:
        """See `Implementation.matrices`."""
        known = get_args(Scalar)
        stated = self._extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", ())
        shapes = (
            MatrixShape(each["m"], each["n"], each["k"], *types)
            for each in stated
            if set(types := (each["component_type"], each["result_component_type"])) <= {*known}
        )
        return tuple(dict.fromkeys(shapes))

    def request_device(
        self, adapter: Any, features: Collection[str], limits: Mapping[str, int]
    ) -> Any:
        """See `Implementation.request_device`."""
        if THREADS not in adapter.features:
            raise RuntimeError(f"the adapter lacks the feature {THREADS}")
        names = {_DAWN_NAMES.get(name, name) for name in features}
        return self._extras.request_device_sync(
            adapter,
            label="rdrr",
            required_features=sorted({*names, THREADS}),
            required_limits=dict(limits),
            enable_toggles=_DEVICE_TOGGLES,
            disable_toggles=_NO_DEVICE_TOGGLES,
        )

    def module(self, gpu: Any, label: str, source: str, *, trusted: bool) -> Any:
        """See `Implementation.module`; index checks stay in trusted modules."""
        del trusted
        return gpu.create_shader_module(label=label, code=for_compiler(source, WgslCompiler.TINT))

    def pipeline(self, gpu: Any, **descriptor: Any) -> Any:
        """See `Implementation.pipeline`.

        Dawn compiles asynchronous pipelines in threads of its own; others keep its device locked.
        """
        return self.wait(gpu.create_compute_pipeline_async(**descriptor))

    def wait(self, promise: Any) -> Any:
        """See `Implementation.wait`.

        Another thread that waits may be about to call the callback of this promise. Then the wait
        ends while the promise is still pending.
        """
        while promise._state == "pending":
            promise._sync_wait()
        return promise.sync_wait()


class DawnCalls(RawCalls):
    """Raw calls into Dawn. A submission is known by the future of its end."""

    def __init__(self, ffi: Any, lib: Any, api: Any) -> None:
        super().__init__(ffi, lib, api)
        self._instance = api.get_wgpu_instance()
        self._ended = ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        self._ended.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._ended.callback = api.c_callback("WGPUQueueWorkDoneCallback")
        self._ended.userdata1 = api.callbacks.register(lambda *_: None, once=False)

    def adapter_info(self, adapter: Any) -> Any:
        """Return what Dawn says about an adapter, a `WGPUAdapterInfo` without its strings."""
        info = self._ffi.new("WGPUAdapterInfo *")
        self._api.libf.wgpuAdapterGetInfo(adapter._internal, info)
        self._api.libf.wgpuAdapterInfoFreeMembers(info[0])
        return info

    def submit(self, device: Any, commands: Any) -> int:
        """See `RawCalls.submit`."""
        queue, libf = device.queue._internal, self._api.libf
        libf.wgpuQueueSubmit(queue, 1, self._ffi.new("WGPUCommandBuffer[]", [commands._internal]))
        return int(libf.wgpuQueueOnSubmittedWorkDone(queue, self._ended[0]).id)

    def read(
        self, device: Any, staging: Any, size: int, submission: int, awake_after: int = 0
    ) -> Bytes | None:
        """See `RawCalls.read`; Dawn itself knows which submission fills the buffer."""
        del device, submission
        ffi, lib, libf = self._ffi, self._lib, self._api.libf
        statuses: list[int] = []
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = self._api.c_callback("WGPUBufferMapCallback")
        info.userdata1 = self._api.callbacks.register(lambda status, *_: statuses.append(status))
        buffer = staging._internal
        mapped = int(libf.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, size, info[0]).id)
        if awake_after:
            self._wait(awake_after)
            end = perf_counter() + AWAKE_SECONDS
            while not statuses and perf_counter() < end:
                self._wait(mapped, 0)
        # Another thread may have the callback in hand when the wait ends, so look until it is done.
        while not statuses and self._wait(mapped):
            pass
        libf.wgpuInstanceProcessEvents(self._instance)  # drops the futures of ended submissions
        if statuses != [lib.WGPUMapAsyncStatus_Success]:
            return None
        data = self._copied(libf.wgpuBufferGetConstMappedRange(buffer, 0, size), size)
        libf.wgpuBufferUnmap(buffer)
        return data

    def timestamp_period(self, device: Any) -> float:
        """See `RawCalls.timestamp_period`; Dawn converts ticks to nanoseconds."""
        del device
        return 1.0

    def _wait(self, future: int, nanoseconds: int = SLICE_NS) -> bool:
        """Wait for a future; return whether that was possible."""
        info = self._ffi.new("WGPUFutureWaitInfo *")
        info.future.id = future
        status = self._api.libf.wgpuInstanceWaitAny(self._instance, 1, info, nanoseconds)
        return status in (self._lib.WGPUWaitStatus_Success, self._lib.WGPUWaitStatus_TimedOut)


class _PendingErrors(local):
    """The errors of the calls of a thread, in the place of wgpudawn's list for all threads.

    Dawn reports an error in the thread whose call is wrong, before the call returns. wgpudawn then
    raises what it finds in its list, which may be the error of another thread's call.
    """

    def __init__(self) -> None:
        self._errors: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __getitem__(self, part: slice) -> list[tuple[str, str]]:
        return self._errors[part]

    def append(self, error: tuple[str, str]) -> None:
        """Add an error."""
        self._errors.append(error)

    def clear(self) -> None:
        """Forget the errors of this thread."""
        self._errors.clear()


def _guard_errors(api: Any, helpers: Any) -> None:
    """Let each thread have the errors of its own calls."""
    handler = api.error_handler
    if not isinstance(handler.pending, _PendingErrors):
        handler.pending = _PendingErrors()
        # Its functions look into the list that the handler had when they were made.
        api.libf = helpers.SafeLibCalls(api.lib, handler)


def _language(lib: Any, instance: Any) -> frozenset[str]:
    """Return the WGSL language features of Tint, as far as they have a name here."""
    prefix = "WGPUWGSLLanguageFeatureName_"
    return frozenset(
        name
        for theirs, name in _LANGUAGE.items()
        if lib.wgpuInstanceHasWGSLLanguageFeature(instance, getattr(lib, prefix + theirs))
    )
