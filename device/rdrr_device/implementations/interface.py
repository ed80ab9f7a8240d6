"""What a device needs of an implementation of WebGPU, beside the API that all of them share.

The Python packages of the implementations have the API of wgpu-py: the same classes, methods and
descriptors. What differs is here: how adapters are listed and devices opened, the names of
features, what the WGSL compiler accepts, the types of errors, and calls into the C library where
the API of wgpu-py is too slow.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import Bytes
from rdrr_device.capabilities import MatrixShape

WebGpuName = Literal["wgpu", "dawn"]

Launch = tuple[Any, Any, int, int, int]
"""C handles of the pipeline and the bind group, and the number of workgroups along x, y and z."""

AWAKE_SECONDS = 0.004
"""Longest time for which the host polls without sleeping. Beside an H200, a host that sleeps sees
the end of a submission 0.3 ms late."""

_LOST = re.compile(r'device( "[^"]*"\])? (is )?lost', re.IGNORECASE)
"""What the messages of implementations say after a device was lost; Dawn's have its label."""


class RawCalls(ABC):
    """Raw calls into the C library of an implementation.

    Recording a dispatch takes 3 to 7 us of Python through the public API, and a third of that here.
    The public API waits for everything that was submitted; to keep the device busy the host must
    wait for a single submission.

    Args:
        ffi: The cffi instance of the package.
        lib: Its library handle.
        api: The module with the wrapper classes.
    """

    def __init__(self, ffi: Any, lib: Any, api: Any) -> None:
        self._ffi = ffi
        self._lib = lib
        self._api = api

    def encode(self, compute_pass: Any, launches: Sequence[Launch]) -> None:
        """Record dispatches into an open compute pass; errors are reported when it is finished."""
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

    def mapped(self, buffer: Any, size: int) -> Bytes:
        """Return the memory of a mapped buffer that is writable, uint8 [size]."""
        address = self._api.libf.wgpuBufferGetMappedRange(buffer._internal, 0, size)
        return np.frombuffer(self._ffi.buffer(address, size), np.uint8)

    @abstractmethod
    def submit(self, device: Any, commands: Any) -> int:
        """Submit one `GPUCommandBuffer` and return a number that stands for the submission."""

    @abstractmethod
    def read(
        self, device: Any, staging: Any, size: int, submission: int, awake_after: int = 0
    ) -> Bytes | None:
        """Wait for a submission and return the first bytes of a mappable buffer.

        Later submissions are not waited for.

        Args:
            device: The `GPUDevice`.
            staging: Buffer that can be mapped for reading.
            size: Number of bytes.
            submission: The submission that fills the buffer, from `submit`.
            awake_after: An earlier submission, from whose end on the host polls without sleeping
                for up to `AWAKE_SECONDS`; 0 to sleep all the time.

        Returns:
            The bytes, or None if the device is lost.
        """

    def _copied(self, mapped: Any, size: int) -> Bytes:
        """Return a copy of mapped memory, whose address is a C pointer.

        numpy asks the system for large pages, without which a copy of megabytes mostly waits for
        pages.
        """
        return np.frombuffer(self._ffi.buffer(mapped, size), np.uint8).copy()

    @abstractmethod
    def timestamp_period(self, device: Any) -> float:
        """Return the nanoseconds per tick of the queue's timestamps."""


class Implementation(ABC):
    """An implementation of WebGPU.

    Attributes:
        name: Its name, as the option `webgpu` has it.
        api: The Python package, with the API of wgpu-py.
        raw: Raw calls; None if this version of the package does not have them.
        builds_in_threads: Whether pipelines may be built in several threads.
        aliased_writes: Whether a dispatch may bind a buffer twice if it writes to it. WebGPU says
            no, and passes in one dispatch do it.
        language: WGSL language features of its compiler.
    """

    name: ClassVar[WebGpuName]
    api: Any
    raw: RawCalls | None = None
    builds_in_threads: bool = False
    aliased_writes: bool = False
    language: frozenset[str] = frozenset()

    @abstractmethod
    def adapters(self) -> Sequence[Any]:
        """Return the `GPUAdapter` objects of this machine."""

    @abstractmethod
    def features(self, adapter: Any) -> frozenset[str]:
        """Return the features of a `GPUAdapter`, by their names in wgpu."""

    def subgroup_sizes(self, adapter: Any) -> tuple[int, int] | None:
        """Return the fewest and most invocations of a subgroup; None if it is not known."""
        # wgpu-py 0.32 replaces "sub" in these names.
        for prefix in ("subgroup", "stackgroup"):
            sizes = (adapter.info.get(f"{prefix}_{end}_size") for end in ("min", "max"))
            least, most = sizes
            if least and most:
                return int(least), int(most)
        return None

    def matrices(self, adapter: Any) -> tuple[MatrixShape, ...]:
        """Return the shapes of what a subgroup of a `GPUAdapter` multiplies at once."""
        del adapter
        return ()

    @abstractmethod
    def request_device(
        self, adapter: Any, features: Collection[str], limits: Mapping[str, int]
    ) -> Any:
        """Open a `GPUDevice` with these features, by their names in wgpu, and limits.

        Raises:
            RuntimeError: The adapter does not open a device.
        """

    @abstractmethod
    def module(self, gpu: Any, label: str, source: str, *, trusted: bool) -> Any:
        """Create the `GPUShaderModule` of a rendered source.

        Args:
            gpu: The `GPUDevice`.
            label: Name for messages.
            source: WGSL as templates render it, which is what naga accepts.
            trusted: Whether the source checks every index and bounds every loop itself, so that
                runtime checks can be omitted where that is possible for a single module.
        """

    def pipeline(self, gpu: Any, **descriptor: Any) -> Any:
        """Create a `GPUComputePipeline`; called from several threads if `builds_in_threads`."""
        return gpu.create_compute_pipeline(**descriptor)

    def wait(self, promise: Any) -> Any:
        """Wait for a `GPUPromise` and return its value."""
        return promise.sync_wait()

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raise the exceptions of the implementation within the `with` block as `DeviceError`.

        A promise that fails, such as that of a pipeline or a mapping, raises `RuntimeError`.

        Args:
            what: The operation, as in "creating buffer x", for the message.
        """
        try:
            yield
        except self.api.GPUOutOfMemoryError as error:
            raise DeviceError(
                f"the GPU is out of memory while {what}",
                found=str(error),
                hint="close other models and programs that use it, or load the model with a "
                "smaller context, with the cache in q8_0, or on the cpu backend",
            ) from error
        except (self.api.GPUError, RuntimeError) as error:
            text = str(error)
            if _LOST.search(text):
                raise device_lost(what) from error
            raise DeviceError(f"{what} failed", found=text) from error


def device_lost(what: str) -> DeviceError:
    """Return the error of a device that is lost and can only be closed.

    Args:
        what: The operation that failed, as in "reading a buffer".
    """
    return DeviceError(
        f"the GPU device was lost while {what}",
        hint="its driver was reset, or it was removed or closed; close the model and load it again",
    )
