"""How a program reaches the queue: in one submission or in many, with objects kept or made anew.

Published runtimes differ here more than in their kernels. The switches below replay what they do
around the very same dispatches, so that nothing but submission, allocation and synchronisation is
measured. `OURS` is how models run; the others exist for `rdrr bench`.

The kernels of this runtime take what changes from token to token out of buffers and everything
else as override constants, so they bind no uniform. Where a mode has uniforms, each op gets a
buffer with as many bytes as its constants and its grid, made and written as the mode says, but not
bound: what a real uniform would cost on top is left out, in favour of that mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rdrr_runtime.device import BoundDispatch, Device

UNIFORM_ALIGNMENT = 16


@dataclass(frozen=True)
class Submission:
    """The switches.

    Attributes:
        submit_per_op: Every dispatch is an encoder, a pass and a submission of its own.
        pass_per_op: Every dispatch is a pass of its own, in one submission unless the above is
            set; this is how the GPU time of modes is compared.
        uniforms: `none`; `fresh`, one made and written for each dispatch; or `cached`, one for
            each content, kept.
        fresh_bind_groups: Every dispatch gets a new bind group.
        fresh_staging: Every readback gets a new mappable buffer.
    """

    submit_per_op: bool = False
    pass_per_op: bool = False
    uniforms: Literal["none", "fresh", "cached"] = "none"
    fresh_bind_groups: bool = False
    fresh_staging: bool = False


OURS = Submission()


class Submitter:
    """Runs programs on a device as a `Submission` says.

    Args:
        device: Where.
        how: The switches.
    """

    def __init__(self, device: Device, how: Submission = OURS) -> None:
        self.how = how
        self._device = device
        self._uniforms: dict[bytes, Any] = {}

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order, `times` times over."""
        if not (self.how.submit_per_op or self.how.pass_per_op):
            self._reserve(1)
            encoder = self._encoder()
            self._encode(encoder, self._prepared(bound, rows), rows, times)
            self._submit(encoder)
            return
        self._reserve(len(bound) * times)
        encoder = None
        for part in self._parts(bound, times):
            prepared = self._prepared(part, rows)
            encoder = encoder or self._encoder()
            self._encode(encoder, prepared, rows)
            if self.how.submit_per_op:
                self._submit(encoder)
                encoder = None
        if encoder is not None:
            self._submit(encoder)

    def _reserve(self, passes: int) -> None:
        if self._device.timer is not None:
            self._device.timer.reserve(passes)

    def _parts(
        self, bound: Sequence[BoundDispatch], times: int
    ) -> Iterator[tuple[BoundDispatch, ...]]:
        for _ in range(times):
            yield from ((one,) for one in bound)

    def _prepared(self, bound: Sequence[BoundDispatch], rows: int) -> Sequence[BoundDispatch]:
        """The dispatches with the objects that the mode makes anew."""
        if self.how.uniforms != "none":
            for one in bound:
                self._provide_uniform(one, rows)
        if self.how.fresh_bind_groups:
            return tuple(self._device.bind(one.dispatch) for one in bound)
        return bound

    def _provide_uniform(self, one: BoundDispatch, rows: int) -> None:
        counters, content = self._device.counters, uniform_content(one, rows)
        key = content.tobytes()
        if self.how.uniforms == "cached" and key in self._uniforms:
            counters.uniform_hits += 1
            return
        buffer = self._device.create_uniform(one.label, content)
        counters.uniform_creates += 1
        if self.how.uniforms == "cached":
            self._uniforms[key] = buffer

    def _encoder(self) -> Any:
        return self._device.wgpu.create_command_encoder(label="program")

    def _encode(
        self, encoder: Any, bound: Sequence[BoundDispatch], rows: int, times: int = 1
    ) -> None:
        timer = self._device.timer
        writes = timer.writes() if timer is not None else None
        compute_pass = encoder.begin_compute_pass(label="program", timestamp_writes=writes)
        # Only whole programs come again as the same tuple.
        replayed = not (self.how.fresh_bind_groups or self.how.pass_per_op)
        for _ in range(times):
            self._device.encode(
                compute_pass, bound, rows, replayed=replayed and not self.how.submit_per_op
            )
        compute_pass.end()

    def _submit(self, encoder: Any) -> None:
        self._device.wgpu.queue.submit([encoder.finish()])
        self._device.counters.submits += 1


def uniform_content(one: BoundDispatch, rows: int) -> npt.NDArray[np.float32]:
    """What a uniform of a dispatch would hold: its constants, then its grid; whole 16 bytes."""
    values = [float(value) for _, value in one.dispatch.kernel.overrides]
    values += [float(count) for count in one.grid.counts(rows)]
    words = -(-4 * len(values) // UNIFORM_ALIGNMENT) * UNIFORM_ALIGNMENT // 4
    content = np.zeros(words, np.float32)
    content[: len(values)] = values
    return content
