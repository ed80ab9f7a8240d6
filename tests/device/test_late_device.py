"""Arenas on a device that is being opened: buffers that become real once it is open."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.arena import DeviceArena
from rdrr_device.late_device import LateDevice
from rdrr_format.errors import DeviceError


def test_buffers_become_real_with_what_was_written_meanwhile(device, rng):
    content = rng.integers(0, 256, (3, 512), dtype=np.uint8)
    before = device.memory.live
    late = LateDevice(device.capabilities)
    buffers = DeviceArena(late)
    single, pooled = buffers.empty("single", 512), buffers.pool("pool", 512).empty("pooled", 512)
    for data in content[:2]:  # the second write wins
        buffers.write(single, data)
    buffers.write(pooled, content[2])
    size = buffers.size
    assert device.memory.live == before
    late.opened(device)
    assert device.memory.live - before == size == buffers.size
    later = buffers.upload("later", content[0])
    for part, data in ((single, content[1]), (pooled, content[2]), (later, content[0])):
        np.testing.assert_array_equal(device.read(part), data)
    live = device.memory.live
    buffers.dispose()
    assert live - device.memory.live == size + later.size
    with pytest.raises(DeviceError, match="freed"):
        device.read(single)


def test_an_arena_may_be_freed_before_its_device_is_open(device):
    buffers = DeviceArena(LateDevice(device.capabilities))
    buffers.empty("single", 64)
    buffers.pool("pool", 64).empty("pooled", 64)
    buffers.dispose()
    assert buffers.size == 0


def test_memory_that_ends_while_buffers_are_created_is_freed(device, monkeypatch):
    before = device.memory.live
    late = LateDevice(device.capabilities)
    buffers = DeviceArena(late, "model")
    for name, size in (("first", 1 << 10), ("second", 1 << 12), ("third", 1 << 10)):
        buffers.empty(name, size)
    monkeypatch.setattr(device.memory, "limit", before + (1 << 11))
    with pytest.raises(DeviceError, match=r"model\.second"):
        late.opened(device)
    buffers.dispose()
    assert device.memory.live == before
