"""The wgpu calls of modes that create objects for each op, and an implementation with wgpu-py.

`published.modes.native_calls` implements the same calls beneath wgpu-py; measurements use that.
`published.modes.submission` decides which calls a mode makes, and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferUsage, bind_group_entries
from rdrr_device.pipelines import BoundDispatch

UNIFORM_ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class Op:
    """A bound dispatch for a number of token rows, prepared for `OpCalls`.

    Attributes:
        bound: The bound dispatch.
        counts: Workgroups of the dispatch in x, y and z.
        content: Content of its uniform buffer.
        key: The content as bytes, for caching uniform buffers.
        handles: Further data of the implementation of `OpCalls`.
    """

    bound: BoundDispatch
    counts: tuple[int, int, int]
    content: npt.NDArray[np.float32]
    key: bytes
    handles: Any = None


class OpCalls(Protocol):
    """The calls that create the objects of ops, record passes and submit them."""

    def checked(self) -> Any:
        """Return a context that raises the errors of its calls, at its end at the latest."""

    def prepare(self, bound: BoundDispatch, rows: int) -> Op:
        """Prepare a dispatch for the calls; the result can be used any number of times."""

    def uniform(self, op: Op) -> Any:
        """Create a uniform buffer with an op's content; it lives as long as it is referenced."""

    def bind(self, op: Op) -> Any:
        """Create a bind group of an op's buffers; it lives as long as it is referenced."""

    def begin(self, writes: Mapping[str, Any] | None) -> None:
        """Begin a pass, and an encoder if none is open.

        Args:
            writes: Timestamp writes of the pass, as in `begin_compute_pass`; None for none.
        """

    def dispatch(self, op: Op, group: Any = None) -> None:
        """Record an op with a bind group created by `bind`, or with its reusable one when None."""

    def end(self) -> None:
        """End the pass."""

    def finish(self) -> None:
        """Finish the encoder; its command buffer is part of the next submission."""

    def submit(self) -> None:
        """Submit all finished command buffers."""


class WgpuCalls:
    """`OpCalls` through the public API of wgpu-py.

    Args:
        gpu: The `GPUDevice`.
    """

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._encoder: Any = None
        self._pass: Any = None
        self._finished: list[Any] = []

    @contextmanager
    def checked(self) -> Iterator[None]:
        """See `OpCalls.checked`; each call raises its errors, unfinished commands are dropped."""
        self._encoder = self._pass = None
        self._finished.clear()
        yield

    def prepare(self, bound: BoundDispatch, rows: int) -> Op:
        """See `OpCalls.prepare`."""
        return op_of(bound, rows)

    def uniform(self, op: Op) -> Any:
        """See `OpCalls.uniform`."""
        usage = BufferUsage.UNIFORM | BufferUsage.COPY_DST
        size = op.content.nbytes
        buffer = self._gpu.create_buffer(label=op.bound.label, size=size, usage=usage)
        self._gpu.queue.write_buffer(buffer, 0, op.content)
        return buffer

    def bind(self, op: Op) -> Any:
        """See `OpCalls.bind`."""
        layout, buffers = op.bound.layout, op.bound.slices
        return self._gpu.create_bind_group(
            label=op.bound.label, layout=layout, entries=bind_group_entries(buffers)
        )

    def begin(self, writes: Mapping[str, Any] | None) -> None:
        """See `OpCalls.begin`."""
        if self._encoder is None:
            self._encoder = self._gpu.create_command_encoder(label="program")
        self._pass = self._encoder.begin_compute_pass(label="program", timestamp_writes=writes)

    def dispatch(self, op: Op, group: Any = None) -> None:
        """See `OpCalls.dispatch`."""
        self._pass.set_pipeline(op.bound.pipeline)
        self._pass.set_bind_group(0, op.bound.bind_group if group is None else group)
        self._pass.dispatch_workgroups(*op.counts)

    def end(self) -> None:
        """See `OpCalls.end`."""
        self._pass.end()

    def finish(self) -> None:
        """See `OpCalls.finish`."""
        encoder, self._encoder = self._encoder, None
        self._finished.append(encoder.finish())

    def submit(self) -> None:
        """See `OpCalls.submit`."""
        self._gpu.queue.submit(self._finished)
        self._finished.clear()


def op_of(bound: BoundDispatch, rows: int) -> Op:
    """Return the op of a bound dispatch, with the content of its uniform buffer."""
    content = uniform_content(bound, rows)
    return Op(bound, bound.work.counts(rows), content, content.tobytes())


def uniform_content(bound: BoundDispatch, rows: int) -> npt.NDArray[np.float32]:
    """Return the content that a uniform buffer of a dispatch would have.

    It has the override constants, then the grid, padded with zeros to a multiple of 16 bytes.
    """
    values = [float(value) for _, value in bound.dispatch.kernel.overrides]
    values += [float(count) for count in bound.work.counts(rows)]
    words = -(-4 * len(values) // UNIFORM_ALIGNMENT) * UNIFORM_ALIGNMENT // 4
    content = np.zeros(words, np.float32)
    content[: len(values)] = values
    return content
