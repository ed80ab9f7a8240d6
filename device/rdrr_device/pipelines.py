"""Compute pipelines and bind groups of one device, and recording them into a compute pass.

`rdrr_device.device` owns a `Pipelines` and a `Recorder`, and manages the buffers and the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import bind_group_entries
from rdrr_device.counters import Counters
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.native import Launch, Native
from rdrr_device.wgpu_errors import device_errors

REMEMBERED_PROGRAMS = 16
"""Programs whose C handles and workgroup counts are kept, so that replaying them is fast."""


@dataclass(frozen=True)
class BoundDispatch:
    """A `Dispatch` with its pipeline and bind group, ready to be encoded any number of times."""

    pipeline: Any
    layout: Any
    bind_group: Any
    work: Work
    label: str
    kernel: str
    dispatch: Dispatch


class Pipelines:
    """The compute pipelines of one device, each created once.

    Args:
        gpu: The `GPUDevice`.
        native: Raw calls, which can compile trusted kernels without runtime checks; with None,
            all kernels have them.
        counters: Counters of the created pipelines and bind groups.
    """

    def __init__(self, gpu: Any, native: Native | None, counters: Counters) -> None:
        self._gpu = gpu
        self._native = native
        self._counters = counters
        self._made: dict[Kernel, tuple[Any, Any]] = {}
        self._modules: dict[str, Any] = {}

    def get(self, kernel: Kernel) -> tuple[Any, Any]:
        """Return the compute pipeline of a kernel and its explicit bind group layout.

        Raises:
            DeviceError: The shader does not compile, or the device does not support it.
        """
        made = self._made.get(kernel)
        if made is None:
            with device_errors(f"building kernel {kernel.label}"):
                made = self._made[kernel] = self._build(kernel)
            self._counters.pipeline_creates += 1
        return made

    def bind(self, dispatch: Dispatch) -> BoundDispatch:
        """Create the bind group of a dispatch, none of whose buffers has been freed.

        Raises:
            DeviceError: The buffers do not match the kernel's bindings.
        """
        pipeline, layout = self.get(dispatch.kernel)
        with device_errors(f"binding {dispatch.label}"):
            group = self._gpu.create_bind_group(
                label=dispatch.label, layout=layout, entries=bind_group_entries(dispatch.buffers)
            )
        self._counters.bind_group_creates += 1
        label, kernel = dispatch.label, dispatch.kernel.label
        return BoundDispatch(pipeline, layout, group, dispatch.work, label, kernel, dispatch)

    def clear(self) -> None:
        """Drop all pipelines and shader modules."""
        self._made.clear()
        self._modules.clear()

    def _build(self, kernel: Kernel) -> tuple[Any, Any]:
        """Create the pipeline and bind group layout; kernels with one source share a module."""
        import wgpu

        module = self._modules.get(kernel.source)
        if module is None:
            module = self._gpu.create_shader_module(label=kernel.label, code=kernel.source)
            if kernel.trusted and self._native is not None:
                # The module above was created to validate the source; this one has no checks.
                module = self._native.trusted_module(self._gpu, kernel.label, kernel.source)
            self._modules[kernel.source] = module
        layout = self._gpu.create_bind_group_layout(
            label=kernel.label,
            entries=[
                {
                    "binding": index,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": binding.access.value},
                }
                for index, binding in enumerate(kernel.bindings)
            ],
        )
        pipeline = self._gpu.create_compute_pipeline(
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

    def __init__(self, native: Native | None) -> None:
        self._native = native
        self._replayed: dict[tuple[int, int], tuple[Sequence[BoundDispatch], list[Launch]]] = {}

    def record(self, compute_pass: Any, bound: Sequence[BoundDispatch], rows: int) -> None:
        """Record bound dispatches for `rows` token rows into an open compute pass."""
        if self._native is not None:
            self._native.encode(compute_pass, self._launches(bound, rows))
            return
        for one in bound:
            compute_pass.set_pipeline(one.pipeline)
            compute_pass.set_bind_group(0, one.bind_group)
            compute_pass.dispatch_workgroups(*one.work.counts(rows))

    def clear(self) -> None:
        """Drop the remembered programs."""
        self._replayed.clear()

    def _launches(self, bound: Sequence[BoundDispatch], rows: int) -> Sequence[Launch]:
        """Return the C handles and workgroup counts of a program.

        They are remembered by the identity of `bound`, which is the same object for each replay.
        """
        key = (id(bound), rows)
        found = self._replayed.get(key)
        if found is None or found[0] is not bound:
            found = self._replayed[key] = (bound, _launches(bound, rows))
            while len(self._replayed) > REMEMBERED_PROGRAMS:
                self._replayed.pop(next(iter(self._replayed)))
        return found[1]


def _launches(bound: Sequence[BoundDispatch], rows: int) -> list[Launch]:
    return [
        (one.pipeline._internal, one.bind_group._internal, *one.work.counts(rows)) for one in bound
    ]
