"""Writes of what lies in mapped buffers are copies on the device, in queue order."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.device import Device
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import Access, Binding
from support.dawn_device import open_dawn_device, why_no_dawn

SIZE = 4096
DOUBLING = Kernel(
    "double",
    """@group(0) @binding(0) var<storage, read_write> values: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) i: u32) { values[i] *= 2; }
""",
    "main",
    (),
    (Binding("values", Access.READ_WRITE),),
)


@pytest.fixture
def hardware(device, monkeypatch) -> Device:
    """The software device in the role of a GPU, since only GPUs have mapped buffers."""
    monkeypatch.setattr(device, "info", replace(device.info, software=False))
    return device


def filled(buffers, values: np.ndarray):
    taken = buffers.take()
    content = taken.content[: values.nbytes].view(values.dtype)
    content[:] = values
    return taken, content


def words(rng, count: int) -> np.ndarray:
    return rng.integers(0, 2**31, count, dtype=np.uint32)


def test_more_pieces_than_buffers_arrive_whole(hardware, bench, rng):
    pieces = [words(rng, SIZE // 4) for _ in range(7)]
    target = bench.poisoned(7 * SIZE // 4)
    created = hardware.counters.buffer_creates
    with hardware.mapped_buffers(SIZE, 3) as buffers:
        for number, values in enumerate(pieces):
            taken, content = filled(buffers, values)
            half = SIZE // 8  # two writes of one piece
            hardware.write(target, content[:half], SIZE * number)
            hardware.write(target, content[half:], SIZE * number + SIZE // 2)
            buffers.release(taken)
    assert hardware.counters.buffer_creates - created == 3
    read = hardware.read(target).view(np.uint32)
    np.testing.assert_array_equal(read, np.concatenate(pieces))


@pytest.mark.parametrize("releases_first", [True, False])
def test_a_submission_sees_what_was_written_before_it(hardware, bench, rng, releases_first):
    values = words(rng, 64)
    target = bench.poisoned(64)
    with hardware.mapped_buffers(SIZE, 2) as buffers:
        taken, content = filled(buffers, values)
        hardware.write(target, content)
        if releases_first:
            buffers.release(taken)
        hardware.submit([hardware.bind(Dispatch(DOUBLING, (target,), Work(), "t"))], 1)
        np.testing.assert_array_equal(hardware.read(target).view(np.uint32), 2 * values)
        if not releases_first:  # the rest of what was read is written after a submission
            hardware.write(target, content)
            buffers.release(taken)
            np.testing.assert_array_equal(hardware.read(target).view(np.uint32), values)


def test_the_host_gives_memory_up_as_the_device_copies_from_it(hardware, bench, rng):
    target = bench.poisoned(64)
    with hardware.mapped_buffers(SIZE, 3) as buffers:
        (written, content), (untouched, _) = (filled(buffers, words(rng, 64)) for _ in range(2))
        hardware.write(target, content)
        assert written.is_mapped
        hardware.read(target)
        assert not written.is_mapped
        assert untouched.is_mapped


def test_what_lies_elsewhere_or_at_an_odd_offset_is_written_as_ever(hardware, bench, rng):
    target = bench.poisoned(3)
    elsewhere = words(rng, 1)
    with hardware.mapped_buffers(SIZE, 2) as buffers:
        taken = buffers.take()
        taken.content[:12] = np.arange(12)
        for place, data in enumerate((elsewhere, taken.content[2:6], taken.content[8:12])):
            hardware.write(target, data, 4 * place)
        assert [offset for offset, _ in taken.copies] == [8]
        buffers.release(taken)
    expected = [*elsewhere.view(np.uint8), 2, 3, 4, 5, 8, 9, 10, 11]
    assert hardware.read(target).tolist() == expected


def test_memory_of_the_buffers_is_counted_until_the_end(hardware):
    live = hardware.memory.live
    with hardware.mapped_buffers(SIZE, 3) as buffers:
        for _ in range(5):
            buffers.release(buffers.take())
        assert hardware.memory.live == live + 3 * SIZE
    assert hardware.memory.live == live


def test_a_software_adapter_has_none(device):
    with device.mapped_buffers(SIZE, 2) as buffers:
        assert buffers is None


@pytest.mark.skipif(why_no_dawn() is not None, reason="Dawn is not there")
def test_they_work_on_dawn(rng):
    with closing(open_dawn_device()) as dawn, arena(dawn) as owner:
        dawn.info = replace(dawn.info, software=False)
        target = owner.empty("target", SIZE)
        with dawn.mapped_buffers(SIZE, 2) as buffers:
            for _ in range(5):
                values = words(rng, SIZE // 4)
                taken, content = filled(buffers, values)
                dawn.write(target, content)
                buffers.release(taken)
                np.testing.assert_array_equal(dawn.read(target).view(np.uint32), values)
