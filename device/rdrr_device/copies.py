"""Copies between parts of buffers, also of the same one, which WebGPU does not copy to itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device


def copy_slices(
    device: Device,
    pairs: Iterable[tuple[BufferSlice, BufferSlice]],
    *,
    label: str,
    scratch: BufferSlice | None = None,
) -> None:
    """Copy slices to others of their size one after the other, in queue order.

    Args:
        device: The device.
        pairs: Source and destination of each copy.
        label: Name for messages.
        scratch: Memory in another buffer, at least as large as each slice, through which slices are
            copied to others of their buffer; None if they are in different ones.

    Raises:
        DeviceError: The device is lost.
    """
    with device.implementation.errors(label):
        encoder = device.wgpu.create_command_encoder(label=label)
        for source, target in pairs:
            between = [source, target] if scratch is None else [source, scratch, target]
            for x, y in pairwise(between):
                encoder.copy_buffer_to_buffer(
                    x.buffer.gpu, x.offset, y.buffer.gpu, y.offset, source.size
                )
        device.wgpu.queue.submit([encoder.finish()])
    device.counters.submits += 1
