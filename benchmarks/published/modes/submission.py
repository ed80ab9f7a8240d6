"""Submitters of the decode modes: one submission or many, objects reused or created anew.

Published runtimes differ more in this respect than in their kernels. The switches of `Submission`
replay them with the same dispatches, so that only submission, allocation and synchronisation are
measured. `OURS` is how rdrr runs models.

The kernels of this runtime read what changes from token to token from buffers and have everything
else as override constants, so they bind no uniform buffer. In a mode with uniforms, each op gets a
buffer with as many bytes as its constants and its grid. The buffer is created and written as the
mode does it, but not bound; the further cost of a real uniform is omitted, in favour of that mode.

Objects and submissions of single ops go through `published.modes.native_calls`, which costs little
more than the API itself, so that the calls of a mode are measured and not Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from rdrr_device.device import Device
from rdrr_device.handle import DeviceHandle
from rdrr_device.implementations import wgpu
from rdrr_device.pipelines import BoundDispatch, serving_of

from published.modes.native_calls import NativeCalls
from published.modes.op_calls import Op, OpCalls, WgpuCalls

REMEMBERED_PROGRAMS = 16  # programs whose prepared ops a submitter keeps


@dataclass(frozen=True)
class Submission:
    """The switches of a mode.

    Attributes:
        submit_per_op: Every dispatch has its own encoder, pass and submission.
        pass_per_op: Every dispatch has its own pass and command buffer, all in one submission
            unless `submit_per_op` is set. The GPU times of modes are compared in this way, because
            the time between the timestamps then covers the same work in all modes. Passes in one
            command buffer would also include the wait for the writes of earlier passes.
        uniforms: `none`; `fresh`: a uniform buffer is created and written for each dispatch; or
            `cached`: one is created for each distinct content and reused.
        fresh_bind_groups: Every dispatch gets a new bind group.
        fresh_staging: Every readback gets a new mappable buffer.
    """

    submit_per_op: bool = False
    pass_per_op: bool = False
    uniforms: Literal["none", "fresh", "cached"] = "none"
    fresh_bind_groups: bool = False
    fresh_staging: bool = False


OURS = Submission()
"""The submission of this runtime."""


class Submitters:
    """The submitters of the modes on one device; the caches of a mode persist between its runs.

    Attributes:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._submitters: dict[Submission, ModeSubmitter] = {}

    def submitting(self, how: Submission) -> AbstractContextManager[None]:
        """Return a context in which the device submits programs as a mode does."""
        if how == OURS:
            return nullcontext()
        if how not in self._submitters:
            handle = self.device.handle
            self._submitters[how] = ModeSubmitter(handle, how, op_calls(handle))
        return self.device.submitting(self._submitters[how])

    def close(self) -> None:
        """Drop the caches of all modes; call this before closing the device."""
        self._submitters.clear()


class ModeSubmitter:
    """A submitter that runs programs with the switches of a `Submission`.

    Args:
        device: The device.
        how: The switches.
        calls: Calls that create objects and submissions of single ops.
    """

    def __init__(self, device: DeviceHandle, how: Submission, calls: OpCalls) -> None:
        self.how = how
        self.fresh_staging = how.fresh_staging
        self._device = device
        self._calls = calls
        self._uniforms: dict[bytes, Any] = {}
        self._known: dict[tuple[int, int], tuple[Sequence[BoundDispatch], list[Op]]] = {}

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """See `rdrr_device.submission.Submitter.run`."""
        with self._calls.checked():
            self._run(self._ops(bound, rows), times)

    def _run(self, ops: Sequence[Op], times: int) -> None:
        how, counters = self.how, self._device.counters
        separate = how.submit_per_op or how.pass_per_op
        self._reserve(len(ops) * times if separate else 1)
        if not separate:
            self._begin()
        for _ in range(times):
            for op in ops:
                if how.uniforms != "none":
                    self._provide_uniform(op)
                group = self._group(op)
                if separate:
                    self._begin()
                self._calls.dispatch(op, group)
                counters.dispatches += 1
                if separate:
                    self._end()
                if how.submit_per_op:
                    self._submit()
        if not separate:
            self._end()
        if not how.submit_per_op:
            self._submit()

    def _reserve(self, passes: int) -> None:
        if self._device.timer is not None:
            self._device.timer.reserve(passes)

    def _begin(self) -> None:
        timer = self._device.timer
        self._calls.begin(timer.writes() if timer is not None else None)

    def _end(self) -> None:
        self._calls.end()
        self._calls.finish()

    def _submit(self) -> None:
        self._calls.submit()
        self._device.counters.submits += 1

    def _group(self, op: Op) -> Any:
        """Return a new bind group if the mode creates one for each dispatch, else None."""
        if not self.how.fresh_bind_groups:
            return None
        self._device.counters.bind_group_creates += 1
        return self._calls.bind(op)

    def _provide_uniform(self, op: Op) -> None:
        counters = self._device.counters
        if self.how.uniforms == "cached" and op.key in self._uniforms:
            counters.uniform_hits += 1
            return
        buffer = self._calls.uniform(op)
        counters.uniform_creates += 1
        counters.buffer_creates += 1
        counters.bytes_written += op.content.nbytes
        if self.how.uniforms == "cached":
            self._uniforms[op.key] = buffer

    def _ops(self, bound: Sequence[BoundDispatch], rows: int) -> list[Op]:
        """Return the prepared ops of a program; they are cached by the identity of the program."""
        key = (id(bound), rows)
        cached = self._known.get(key)
        if cached is None or cached[0] is not bound:
            ops = [self._calls.prepare(dispatch, rows) for dispatch in serving_of(bound, rows)]
            cached = self._known[key] = (bound, ops)
            while len(self._known) > REMEMBERED_PROGRAMS:
                self._known.pop(next(iter(self._known)))
        return cached[1]


def op_calls(device: DeviceHandle) -> OpCalls:
    """Return the native calls if this is wgpu and its version allows them, else the public ones."""
    if isinstance(device.native, wgpu.WgpuCalls):
        return NativeCalls(*device.native.internals(), device.wgpu)
    return WgpuCalls(device.wgpu)
