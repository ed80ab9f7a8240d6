"""Arenas: buffers that are freed together, and pools of slices that share them."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.buffers import OFFSET_ALIGNMENT
from rdrr_device.capabilities import Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_format.errors import DeviceError

SIZES = (4, 256, 1000, 260)


def test_slices_of_a_pool_share_one_buffer_and_keep_their_bytes(device, rng):
    data = [rng.integers(0, 256, size, dtype=np.uint8) for size in SIZES]
    dry_run = DryRunArena(device.capabilities).pool("pool", 0)
    for entry in data:
        dry_run.upload("slice", entry)
    with arena(device) as buffers:
        pool = buffers.pool("pool", dry_run.size)
        slices = [pool.upload("slice", content) for content in data]
        assert len({id(part.buffer) for part in slices}) == 1
        assert all(part.offset % OFFSET_ALIGNMENT == 0 for part in slices)
        assert buffers.size == pool.size == dry_run.size
        for entry, held in zip(data, slices, strict=True):
            np.testing.assert_array_equal(device.read(held), entry)


def test_a_pool_that_was_planned_too_small_creates_another_buffer(device):
    with arena(device) as buffers:
        pool = buffers.pool("pool", 512)
        slices = [pool.empty("slice", 512) for _ in range(2)]
        assert len({id(part.buffer) for part in slices}) == 2


def test_no_buffer_of_a_pool_is_larger_than_the_device_can_bind(device):
    with arena(device) as buffers:
        pool = buffers.pool("pool", 4 * device.max_binding)
        pool.capabilities = Capabilities(limits={"max-storage-buffer-binding-size": 4096})
        slices = [pool.empty("slice", 1500) for _ in range(4)]
        assert {part.buffer.size for part in slices} == {4096}
        assert len({id(part.buffer) for part in slices}) == 2


def test_the_buffers_of_a_pool_are_freed_with_its_arena(device):
    before = device.memory.live
    with arena(device) as buffers:
        held = buffers.pool("pool", 1024).empty("slice", 1024)
        assert device.memory.live == before + 1024
    assert device.memory.live == before
    with pytest.raises(DeviceError, match="freed"):
        device.read(held)
