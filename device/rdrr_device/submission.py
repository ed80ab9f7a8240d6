"""How a program reaches the queue: in one submission or in many, with objects kept or made anew.

Published runtimes differ here more than in their kernels. The switches below replay what they do
around the very same dispatches, so that nothing but submission, allocation and synchronisation is
measured. `OURS` is how models run; the others exist for `rdrr bench`.

The kernels of this runtime take what changes from token to token out of buffers and everything
else as override constants, so they bind no uniform. Where a mode has uniforms, each op gets a
buffer with as many bytes as its constants and its grid, made and written as the mode says, but not
bound: what a real uniform would cost on top is left out, in favour of that mode.

Objects and submissions of single ops go through `rdrr_device.op_calls`, which costs little more
than the API does, so that a mode is measured by what it asks for and not by Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rdrr_device.handle import DeviceHandle
from rdrr_device.native_ops import NativeCalls
from rdrr_device.op_calls import Op, OpCalls, WgpuCalls
from rdrr_device.pipelines import BoundDispatch, Recorder

REMEMBERED_PROGRAMS = 16
MANY_ROWS = 128
"""Rows from which a program is so long that it pays to submit its beginning ahead."""


@dataclass(frozen=True)
class Submission:
    """The switches.

    Attributes:
        submit_per_op: Every dispatch is an encoder, a pass and a submission of its own.
        pass_per_op: Every dispatch is a pass of its own in commands of their own, in one submission
            unless the above is set. So the GPU time of modes is compared: what is between the
            timestamps is then the same in all, while within the same commands the waiting for an
            earlier pass's writes falls between them.
        uniforms: `none`; `fresh`, one made and written for each dispatch; or `cached`, one for
            each content, kept.
        fresh_bind_groups: Every dispatch gets a new bind group.
        fresh_staging: Every readback gets a new mappable buffer.
        ahead: Dispatches of a program of `MANY_ROWS` that are submitted ahead of the others, so
            that the GPU works while those are being recorded; 0 for none.
    """

    submit_per_op: bool = False
    pass_per_op: bool = False
    uniforms: Literal["none", "fresh", "cached"] = "none"
    fresh_bind_groups: bool = False
    fresh_staging: bool = False
    ahead: int = 0

    @property
    def by_op(self) -> bool:
        """Whether any op gets a pass or an object of its own."""
        separate = self.submit_per_op or self.pass_per_op
        return separate or self.uniforms != "none" or self.fresh_bind_groups


OURS = Submission(ahead=24)


class Submitter:
    """Runs programs on a device as a `Submission` says.

    Args:
        device: Where.
        recorder: Records dispatches into a pass.
        how: The switches.
    """

    def __init__(self, device: DeviceHandle, recorder: Recorder, how: Submission = OURS) -> None:
        self.how = how
        self._device = device
        self._recorder = recorder
        self._uniforms: dict[bytes, Any] = {}
        self._calls: OpCalls | None = None
        self._parted: dict[int, tuple[Sequence[BoundDispatch], ...]] = {}
        self._known: dict[tuple[int, int], tuple[Sequence[BoundDispatch], list[Op]]] = {}

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order, `times` times over."""
        if not self.how.by_op:
            for part in self._in_two(bound) if rows >= MANY_ROWS and times == 1 else (bound,):
                self._run_whole(part, rows, times)
            return
        if self._calls is None:
            self._calls = op_calls(self._device)
        with self._calls.checked():
            self._run_by_op(self._calls, self._ops(self._calls, bound, rows), times)

    def _in_two(self, bound: Sequence[BoundDispatch]) -> tuple[Sequence[BoundDispatch], ...]:
        """A program in the parts that are submitted, the same objects each time."""
        ahead = self.how.ahead
        if not ahead or len(bound) < 2 * ahead:
            return (bound,)
        found = self._parted.get(id(bound))
        if found is None or found[0] is not bound:
            found = self._parted[id(bound)] = (bound, bound[:ahead], bound[ahead:])
            while len(self._parted) > REMEMBERED_PROGRAMS:
                self._parted.pop(next(iter(self._parted)))
        return found[1:]

    def _run_whole(self, bound: Sequence[BoundDispatch], rows: int, times: int) -> None:
        """All in one pass, with what was made before."""
        device, timer = self._device, self._device.timer
        self._reserve(1)
        writes = timer.writes() if timer is not None else None
        encoder = device.wgpu.create_command_encoder(label="program")
        compute_pass = encoder.begin_compute_pass(label="program", timestamp_writes=writes)
        for _ in range(times):
            self._recorder.record(compute_pass, bound, rows)
            device.counters.dispatches += len(bound)
        compute_pass.end()
        device.wgpu.queue.submit([encoder.finish()])
        device.counters.submits += 1

    def _run_by_op(self, calls: OpCalls, ops: Sequence[Op], times: int) -> None:
        """With passes, submissions and objects for each op, as the switches say."""
        how, counters = self.how, self._device.counters
        separate = how.submit_per_op or how.pass_per_op
        self._reserve(len(ops) * times if separate else 1)
        if not separate:
            self._begin(calls)
        for _ in range(times):
            for op in ops:
                if how.uniforms != "none":
                    self._provide_uniform(calls, op)
                group = self._group(calls, op)
                if separate:
                    self._begin(calls)
                calls.dispatch(op, group)
                counters.dispatches += 1
                if separate:
                    self._end(calls)
                if how.submit_per_op:
                    self._submit(calls)
        if not separate:
            self._end(calls)
        if not how.submit_per_op:
            self._submit(calls)

    def _reserve(self, passes: int) -> None:
        if self._device.timer is not None:
            self._device.timer.reserve(passes)

    def _begin(self, calls: OpCalls) -> None:
        timer = self._device.timer
        calls.begin(timer.writes() if timer is not None else None)

    @staticmethod
    def _end(calls: OpCalls) -> None:
        calls.end()
        calls.finish()

    def _submit(self, calls: OpCalls) -> None:
        calls.submit()
        self._device.counters.submits += 1

    def _group(self, calls: OpCalls, op: Op) -> Any:
        """A new bind group where the mode makes one."""
        if not self.how.fresh_bind_groups:
            return None
        self._device.counters.bind_group_creates += 1
        return calls.bind(op)

    def _provide_uniform(self, calls: OpCalls, op: Op) -> None:
        counters = self._device.counters
        if self.how.uniforms == "cached" and op.key in self._uniforms:
            counters.uniform_hits += 1
            return
        buffer = calls.uniform(op)
        counters.uniform_creates += 1
        counters.buffer_creates += 1
        counters.bytes_written += op.content.nbytes
        if self.how.uniforms == "cached":
            self._uniforms[op.key] = buffer

    def _ops(self, calls: OpCalls, bound: Sequence[BoundDispatch], rows: int) -> list[Op]:
        """What the calls need, remembered while the same tuple comes again."""
        at = (id(bound), rows)
        found = self._known.get(at)
        if found is None or found[0] is not bound:
            found = self._known[at] = (bound, [calls.prepare(one, rows) for one in bound])
            while len(self._known) > REMEMBERED_PROGRAMS:
                self._known.pop(next(iter(self._known)))
        return found[1]


def op_calls(device: DeviceHandle) -> OpCalls:
    """Return the calls for objects of single ops, as fast as this wgpu-py lets them be."""
    if device.native is None:
        return WgpuCalls(device.wgpu)
    return NativeCalls(*device.native.op_calls_parts(), device.wgpu)
