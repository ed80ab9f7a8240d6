"""Uploads through a reused staging buffer: contents, order, counters and errors."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.uploads import UploadBuffer
from rdrr_format.errors import DeviceError

SIZE = 4096


@pytest.fixture
def uploads(device):
    uploads = UploadBuffer(device, "sent", SIZE)
    yield uploads
    uploads.close()


def words(rng, count):
    return rng.integers(0, 2**32, count, dtype=np.uint32)


def test_parts_are_written_one_after_the_other_and_nothing_else_changes(bench, uploads, rng):
    before = words(rng, 1024)
    buffer = bench.upload(before)
    strided = words(rng, 400)[::2]  # rows of a wider array
    parts = [words(rng, 100), strided, rng.integers(0, 255, (4, 8), dtype=np.uint8)]
    uploads.write(buffer.range(256, 2048), parts)
    sent = b"".join(part.tobytes() for part in parts)
    content = bench.device.read(buffer).tobytes()
    assert content == before.tobytes()[:256] + sent + before.tobytes()[256 + len(sent) :]


def test_uploads_run_in_queue_order_with_submissions(bench, uploads, rng):
    """The staging buffer is filled again only after the device has copied from it."""
    buffer, sent = bench.poisoned(SIZE // 4), [words(rng, SIZE // 4) for _ in range(4)]
    fetched = []
    for payload in sent:
        uploads.write(buffer, [payload])
        fetched.append(bench.device.fetch(buffer))
    for payload, fetch in zip(sent, fetched, strict=True):
        assert np.array_equal(fetch.collect()[0].view(np.uint32), payload)


def test_an_upload_is_counted(device, bench, rng):
    buffer = bench.poisoned(SIZE // 4)
    before, live = device.counters.copy(), device.memory.live
    uploads = UploadBuffer(device, "sent", SIZE)
    assert device.memory.live == live + SIZE
    uploads.write(buffer, [words(rng, 10), words(rng, 6)])
    uploads.write(buffer, [])
    done = device.counters.since(before)
    assert (done.bytes_written, done.submits, done.buffer_creates) == (64, 1, 1)
    uploads.close()
    assert device.memory.live == live


def test_an_upload_that_does_not_fit_is_refused_before_anything_is_written(bench, uploads, rng):
    before = words(rng, 2048)
    buffer = bench.upload(before)
    half = words(rng, SIZE // 8)
    for target, parts, message in (
        (buffer, [half, half, half[:2]], "larger than the staging buffer"),
        (buffer.range(0, SIZE // 2), [half, half], "range outside"),
        (buffer, [half[:1], half[:3]], "a multiple of 8 bytes"),
    ):
        with pytest.raises(DeviceError, match=message):
            uploads.write(target, parts)
    assert np.array_equal(bench.device.read(buffer).view(np.uint32), before)
    uploads.write(buffer, [half, half])  # the control


def test_a_freed_buffer_is_refused(device, uploads, rng):
    with arena(device, "test") as buffers:
        buffer = buffers.empty("gone", 64)
        uploads.write(buffer, [words(rng, 2)])
    with pytest.raises(DeviceError, match="has been freed"):
        uploads.write(buffer, [words(rng, 2)])
