"""Kernels as a device's pipelines, dispatches bound to them, and their recording into a pass.

`rdrr_device.device` owns one of each and counts; buffers and the queue are its business.
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

REMEMBERED_PROGRAMS = 16  # whose launches are kept ready to encode


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
    """The pipelines of one device, each made once.

    Args:
        gpu: The `GPUDevice`.
        native: Raw calls, for modules without runtime checks; None makes all with them.
        counters: Where what is made is counted.
    """

    def __init__(self, gpu: Any, native: Native | None, counters: Counters) -> None:
        self._gpu = gpu
        self._native = native
        self._counters = counters
        self._made: dict[Kernel, tuple[Any, Any]] = {}
        self._modules: dict[str, Any] = {}

    def of(self, kernel: Kernel) -> tuple[Any, Any]:
        """The compute pipeline of a kernel and its explicit bind group layout.

        Raises:
            DeviceError: The shader or its launch does not suit the device.
        """
        made = self._made.get(kernel)
        if made is None:
            with device_errors(f"building kernel {kernel.label}"):
                made = self._made[kernel] = self._build(kernel)
            self._counters.pipeline_creates += 1
        return made

    def bind(self, dispatch: Dispatch) -> BoundDispatch:
        """The pipeline and bind group of a dispatch, whose buffers are alive.

        Raises:
            DeviceError: The buffers do not suit the kernel.
        """
        pipeline, layout = self.of(dispatch.kernel)
        with device_errors(f"binding {dispatch.label}"):
            group = self._gpu.create_bind_group(
                label=dispatch.label, layout=layout, entries=bind_group_entries(dispatch.buffers)
            )
        self._counters.bind_group_creates += 1
        label, kernel = dispatch.label, dispatch.kernel.label
        return BoundDispatch(pipeline, layout, group, dispatch.work, label, kernel, dispatch)

    def clear(self) -> None:
        """Forget all of them."""
        self._made.clear()
        self._modules.clear()

    def _build(self, kernel: Kernel) -> tuple[Any, Any]:
        import wgpu

        module = self._modules.get(kernel.source)
        if module is None:
            module = self._gpu.create_shader_module(label=kernel.label, code=kernel.source)
            if kernel.trusted and self._native is not None:
                # The module above has been validated; this one leaves out its runtime checks.
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
    """Records bound dispatches into compute passes, by raw calls where there are any.

    Args:
        native: The raw calls; None goes through the public API.
    """

    def __init__(self, native: Native | None) -> None:
        self._native = native
        self._replayed: dict[tuple[int, int], tuple[Sequence[BoundDispatch], list[Launch]]] = {}

    def record(self, compute_pass: Any, bound: Sequence[BoundDispatch], rows: int) -> None:
        """Record dispatches for `rows` token rows."""
        if self._native is not None:
            self._native.encode(compute_pass, self._launches(bound, rows))
            return
        for one in bound:
            compute_pass.set_pipeline(one.pipeline)
            compute_pass.set_bind_group(0, one.bind_group)
            compute_pass.dispatch_workgroups(*one.work.counts(rows))

    def clear(self) -> None:
        """Forget what was kept."""
        self._replayed.clear()

    def _launches(self, bound: Sequence[BoundDispatch], rows: int) -> Sequence[Launch]:
        """Handles and counts of a program, remembered while the same tuple is replayed."""
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
