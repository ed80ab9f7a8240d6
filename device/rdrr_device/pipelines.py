"""Compute pipelines and bind groups of one device, and recording them into a compute pass.

`rdrr_device.device` owns a `Pipelines` and a `Recorder`, and manages the buffers and the queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rdrr_device.buffers import COMPUTE_STAGE, Buffer, BufferSlice, BufferUsage, bind_group_entries
from rdrr_device.counters import Counters
from rdrr_device.implementations.interface import Implementation, Launch, RawCalls
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shared_shaders import SharedKernel, shared

REMEMBERED_PROGRAMS = 64
"""Programs and parts whose C handles and workgroup counts are kept, so that replaying them is
fast."""


@dataclass(frozen=True)
class BoundDispatch:
    """A `Dispatch` with its pipeline and bind group, ready to be encoded any number of times.

    `slices` are the buffers of the bind group: those of the dispatch, and that of its constants if
    its shader reads them from memory.
    """

    pipeline: Any
    layout: Any
    bind_group: Any
    slices: tuple[BufferSlice, ...]
    work: Work
    label: str
    kernel: str
    dispatch: Dispatch


MAX_BUILDERS = 8
"""Most threads that build pipelines ahead, on a machine with as many processors."""

Built = tuple[Any, Any]
"""A compute pipeline and its explicit bind group layout."""


class Pipelines:
    """The compute pipelines of one device, each created once.

    Args:
        gpu: The `GPUDevice`.
        implementation: The implementation that compiles them.
        counters: Counters of the created pipelines and bind groups.
        shares: Whether general kernels that differ only in numbers share a pipeline.
    """

    def __init__(
        self,
        gpu: Any,
        implementation: Implementation,
        counters: Counters,
        *,
        shares: bool = False,
    ) -> None:
        self._gpu = gpu
        self._implementation = implementation
        self._counters = counters
        self._shares = shares
        self._constants: dict[bytes, BufferSlice] = {}
        self._built: dict[Kernel, Built] = {}
        self._ahead: dict[Kernel, Future[Built]] = {}
        self._modules: dict[str, Future[Any]] = {}
        self._lock = Lock()

    def build_ahead(self, kernels: Iterable[Kernel]) -> None:
        """Start building pipelines in other threads, in this order.

        Implementations compile outside of Python's lock. `get` waits for a pipeline that is being
        built, and raises the error of one that cannot be built.
        """
        if not self._implementation.builds_in_threads:
            return
        needed = dict.fromkeys(self._shared(kernel).kernel for kernel in kernels)
        new = [
            kernel for kernel in needed if kernel not in self._built and kernel not in self._ahead
        ]
        if not new:
            return
        pool = ThreadPoolExecutor(min(len(new), os.cpu_count() or 1, MAX_BUILDERS), "compile")
        for kernel in new:
            self._ahead[kernel] = pool.submit(self._build, kernel)
        pool.shutdown(wait=False)  # its threads end when all pipelines are built

    def is_built(self, kernel: Kernel) -> bool:
        """Return whether `get` need not wait for a pipeline that is being built."""
        started = self._ahead.get(self._shared(kernel).kernel)
        return started is None or started.done()

    def get(self, kernel: Kernel) -> Built:
        """Return the compute pipeline of a kernel and its explicit bind group layout.

        Raises:
            DeviceError: The shader does not compile, or the device does not support it.
        """
        kernel = self._shared(kernel).kernel
        built = self._built.get(kernel)
        if built is None:
            with self._implementation.errors(f"building kernel {kernel.label}"):
                built = self._built[kernel] = self._take(kernel)
            self._counters.pipeline_creates += 1
        return built

    def bind(self, dispatch: Dispatch) -> BoundDispatch:
        """Create the bind group of a dispatch, none of whose buffers has been freed.

        Raises:
            DeviceError: The buffers do not match the kernel's bindings.
        """
        pipeline, layout = self.get(dispatch.kernel)
        constants = self._shared(dispatch.kernel).constants
        with self._implementation.errors(f"binding {dispatch.label}"):
            slices = dispatch.buffers
            if constants:
                slices = (*slices, self._uniform(constants))
            group = self._gpu.create_bind_group(
                label=dispatch.label, layout=layout, entries=bind_group_entries(slices)
            )
        self._counters.bind_group_creates += 1
        label, kernel = dispatch.label, dispatch.kernel.label
        work = dispatch.work
        return BoundDispatch(pipeline, layout, group, slices, work, label, kernel, dispatch)

    def clear(self) -> None:
        """Drop all pipelines and shader modules, once none is being built any more."""
        started = [future for future in self._ahead.values() if not future.cancel()]
        wait(started)
        self._ahead.clear()
        self._built.clear()
        self._modules.clear()
        for constants in self._constants.values():
            constants.buffer.gpu.destroy()
        self._constants.clear()

    def _shared(self, kernel: Kernel) -> SharedKernel:
        """Return the kernel that is built, and the constants that are bound with it."""
        shares = self._shares and kernel.general
        return shared(kernel) if shares else SharedKernel(kernel, b"")

    def _uniform(self, constants: bytes) -> BufferSlice:
        """Return a uniform buffer with these contents, which equal constants share."""
        if constants not in self._constants:
            gpu = self._gpu.create_buffer_with_data(
                label="constants", data=constants, usage=BufferUsage.UNIFORM
            )
            buffer = Buffer("constants", len(constants), gpu)
            self._constants[constants] = BufferSlice(buffer, 0, len(constants))
        return self._constants[constants]

    def _take(self, kernel: Kernel) -> Built:
        """Return the pipeline that was built ahead; build it here if no thread has begun to."""
        started = self._ahead.pop(kernel, None)
        if started is None or started.cancel():
            return self._build(kernel)
        return started.result()

    def _module(self, kernel: Kernel) -> Any:
        """Return the shader module of a kernel, which kernels with the same source share."""
        # The first thread compiles, outside of the lock, and the others wait for its result.
        with self._lock:
            module = self._modules.get(kernel.source)
            is_new = module is None
            if module is None:
                module = self._modules[kernel.source] = Future()
        if is_new:
            try:
                module.set_result(self._compile(kernel))
            except BaseException as error:  # otherwise those that wait would wait for ever
                module.set_exception(error)
        return module.result()

    def _compile(self, kernel: Kernel) -> Any:
        return self._implementation.module(
            self._gpu, kernel.label, kernel.source, trusted=kernel.trusted
        )

    def _build(self, kernel: Kernel) -> Built:
        """Create the pipeline and bind group layout of a kernel."""
        module = self._module(kernel)
        layout = self._gpu.create_bind_group_layout(
            label=kernel.label,
            entries=[
                {
                    "binding": index,
                    "visibility": COMPUTE_STAGE,
                    "buffer": {"type": binding.access.value},
                }
                for index, binding in enumerate(kernel.bindings)
            ],
        )
        pipeline = self._implementation.pipeline(
            self._gpu,
            label=kernel.label,
            layout=self._gpu.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={
                "module": module,
                "entry_point": kernel.entry,
                "constants": dict(kernel.overrides),
            },
        )
        return pipeline, layout


class Recorder:
    """A recorder of bound dispatches into compute passes.

    Args:
        native: Raw calls to record with; None uses the public API.
    """

    def __init__(self, native: RawCalls | None) -> None:
        self._native = native
        self._replayed: dict[tuple[int, int], tuple[Sequence[BoundDispatch], list[Launch]]] = {}

    def record(self, compute_pass: Any, bound: Sequence[BoundDispatch], rows: int) -> int:
        """Record those of bound dispatches that serve `rows` token rows; return their number."""
        if self._native is not None:
            launches = self._launches(bound, rows)
            self._native.encode(compute_pass, launches)
            return len(launches)
        serving = serving_of(bound, rows)
        for dispatch in serving:
            compute_pass.set_pipeline(dispatch.pipeline)
            compute_pass.set_bind_group(0, dispatch.bind_group)
            compute_pass.dispatch_workgroups(*dispatch.work.counts(rows))
        return len(serving)

    def clear(self) -> None:
        """Drop the remembered programs."""
        self._replayed.clear()

    def _launches(self, bound: Sequence[BoundDispatch], rows: int) -> Sequence[Launch]:
        """Return the C handles and workgroup counts of a program.

        They are remembered by the identity of `bound`, which is the same object for each replay.
        """
        key = (id(bound), rows)
        cached = self._replayed.get(key)
        if cached is None or cached[0] is not bound:
            cached = self._replayed[key] = (bound, _launches(bound, rows))
            while len(self._replayed) > REMEMBERED_PROGRAMS:
                self._replayed.pop(next(iter(self._replayed)))
        return cached[1]


def serving_of(bound: Sequence[BoundDispatch], rows: int) -> list[BoundDispatch]:
    """Return the dispatches that a pass over `rows` token rows includes, in order."""
    return [dispatch for dispatch in bound if dispatch.work.serves(rows)]


def _launches(bound: Sequence[BoundDispatch], rows: int) -> list[Launch]:
    return [
        (dispatch.pipeline._internal, dispatch.bind_group._internal, *dispatch.work.counts(rows))
        for dispatch in serving_of(bound, rows)
    ]
