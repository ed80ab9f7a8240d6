"""Copies between parts of the same buffer, which WebGPU only copies to another buffer."""

from __future__ import annotations

from collections.abc import Iterable

from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device


def copy_through(
    device: Device,
    scratch: BufferSlice,
    pairs: Iterable[tuple[BufferSlice, BufferSlice]],
    *,
    label: str,
) -> None:
    """Copy slices to others of their size one after the other, in queue order.

    Args:
        device: The device.
        scratch: Memory in another buffer, at least as large as each slice.
        pairs: Source and destination of each copy.
        label: Name for messages.

    Raises:
        DeviceError: The device is lost.
    """
    with device.implementation.errors(label):
        encoder = device.wgpu.create_command_encoder(label=label)
        between = scratch.buffer, scratch.offset
        for source, target in pairs:
            size = source.size
            encoder.copy_buffer_to_buffer(source.buffer, source.offset, *between, size)
            encoder.copy_buffer_to_buffer(*between, target.buffer, target.offset, size)
        device.wgpu.queue.submit([encoder.finish()])
    device.counters.submits += 1
