"""Compressed shards: any part can be read, other decoders read them, and damage is refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format import frame_writer
from rdrr_format.compression import Compression, parse_compression
from rdrr_format.decompression import FrameReader
from rdrr_format.errors import ShardError, UsageError
from rdrr_format.frame_writer import FRAME_SIZE, compress_frame
from rdrr_format.seek_table import MAX_FRAMES, encode_seek_table
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ShardInfo, ShardSpan
from rdrr_format.stores import MemoryStore

NAME = "shard_00000.bin.zst"


def compressed(content, *, shard_size=1 << 30, level=1, workers=1):
    store = MemoryStore()
    writer = ShardWriter(store, shard_size, compression=Compression(level), workers=workers)
    writer.write(content)
    return store, writer.close()


def words(rng, size):
    """Return bytes that compress a little, like weights."""
    return rng.integers(0, 40, size, dtype=np.uint8)


class CountingStore(MemoryStore):
    """A store that counts the bytes that are read."""

    fetched = 0

    def read(self, name, offset=0, size=None):
        result = super().read(name, offset, size)
        self.fetched += len(result)
        return result


@pytest.fixture
def small_frames(monkeypatch):
    monkeypatch.setattr(frame_writer, "FRAME_SIZE", 64)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 1500),
    frame=st.integers(1, 200),
    shard_size=st.integers(50, 900),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_part_of_any_bytes_can_be_read_back(size, frame, shard_size, seed, data):
    content = words(np.random.default_rng(seed), size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_writer, "FRAME_SIZE", frame)
        store, shards = compressed(content, shard_size=shard_size)
    reader = ShardReader(store, shards)
    runs = [ShardSpan(s.index, 0, s.uncompressed_size) for s in shards]
    assert np.array_equal(reader.read(runs), content)
    for _ in range(4):
        start = data.draw(st.integers(0, size))
        count = data.draw(st.integers(0, size - start))
        assert np.array_equal(reader.read_range(runs, start, count), content[start : start + count])
    for shard in shards:
        assert shard.size == len(store.files[shard.filename])
        reader.verify(shard.index)
        reader.frames(shard.index).check()
    assert [s.uncompressed_size for s in shards[:-1]] == [shard_size] * (len(shards) - 1)
    assert [s.offset for s in shards] == [
        sum(e.size for e in shards[:i]) for i in range(len(shards))
    ]


def test_a_plain_decoder_of_zstandard_reads_the_whole_file(rng):
    content = words(rng, 2 * FRAME_SIZE + 100)
    store, _ = compressed(content)
    stream = zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO(store.files[NAME]), read_across_frames=True
    )
    assert stream.read() == content.tobytes()


def test_one_tensor_is_read_without_the_rest(rng):
    content = words(rng, 6 * FRAME_SIZE)
    store, shards = compressed(content)
    counting = CountingStore(store.files)
    place = ShardSpan(0, 3 * FRAME_SIZE - 50, 100)
    result = ShardReader(counting, shards).read([place])
    assert np.array_equal(result, content[place.offset : place.offset + 100])
    assert counting.fetched < 0.4 * shards[0].size  # two of six frames, and the table
    counting.fetched = 0
    ShardReader(counting, shards).read([ShardSpan(0, 0, len(content))])
    assert counting.fetched > 0.9 * shards[0].size  # control: the count counts


def test_sequential_reads_decode_no_frame_twice(rng, monkeypatch):
    content = words(rng, 3 * FRAME_SIZE)
    store, shards = compressed(content)
    decoded = []
    original = FrameReader._decode
    monkeypatch.setattr(
        FrameReader,
        "_decode",
        lambda self, frame, raw: decoded.append(frame) or original(self, frame, raw),
    )
    reader, step = ShardReader(store, shards), 100_000
    for start in range(0, len(content), step):
        run = ShardSpan(0, start, min(step, len(content) - start))
        assert np.array_equal(reader.read([run]), content[start : start + step])
    assert decoded == [0, 1, 2]


@pytest.mark.parametrize("level", [1, 3])
def test_the_bytes_do_not_depend_on_the_threads(rng, level):
    content = words(rng, 5 * FRAME_SIZE // 2)
    packed, shards = compressed(content, level=level)
    for workers in (2, 3):
        assert compressed(content, level=level, workers=workers)[0].files == packed.files
    other = compressed(content, level=4 - level)[0]
    assert other.files != packed.files  # control: the level matters
    assert shards[0].size < len(content)


@pytest.mark.usefixtures("small_frames")
def test_a_table_with_checksums_is_read_too(rng):
    """Checksums in the table, which the standard allows, are ignored: frames have their own."""
    content = words(rng, 150)
    store, shards = compressed(content)
    raw = store.files[NAME]
    sizes = frame_sizes(raw)
    entries = b"".join(struct.pack("<III", *pair, 7) for pair in sizes)
    footer = struct.pack("<IBI", len(sizes), 0x80, 0x8F92EAB1)
    table = struct.pack("<II", 0x184D2A5E, len(entries) + len(footer)) + entries + footer
    store.files[NAME] = raw[: sum(size for size, _ in sizes)] + table
    shard = replace(shards[0], size=len(store.files[NAME]))
    assert np.array_equal(ShardReader(store, [shard]).read([ShardSpan(0, 0, 150)]), content)


def frame_sizes(raw):
    count = struct.unpack("<I", raw[-9:-5])[0]
    table = raw[-9 - 8 * count : -9]
    return [struct.unpack_from("<II", table, 8 * i) for i in range(count)]


def forged(frames, sizes, declared):
    """Return the reader of a shard made of given frames and a seek table of given sizes."""
    raw = b"".join(frames) + encode_seek_table(sizes)
    shard = ShardInfo(0, NAME, len(raw), "", 0, "zstd", declared)
    return ShardReader(MemoryStore({NAME: raw}), [shard])


def fails(reader, message, size=10):
    with pytest.raises(ShardError, match=message) as caught:
        reader.read([ShardSpan(0, 0, size)])
    assert NAME in str(caught.value)


def test_a_truncated_file_says_that_its_table_is_missing(rng):
    store, shards = compressed(words(rng, 5000))
    store.files[NAME] = store.files[NAME][:-1]
    fails(ShardReader(store, [replace(shards[0], size=shards[0].size - 1)]), "no seek table")
    fails(ShardReader(store, shards), "too short")
    fails(ShardReader(MemoryStore({NAME: b"abc"}), [replace(shards[0], size=3)]), "too short for")


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("where", ["header", "middle"])
def test_a_damaged_frame_is_named_and_the_others_are_still_read(rng, where):
    content = words(rng, 64 * 3)
    store, shards = compressed(content)
    raw = bytearray(store.files[NAME])
    (first, _), (second, _), _ = frame_sizes(bytes(raw))
    raw[first + (0 if where == "header" else second // 2)] ^= 0xFF
    store.files[NAME] = bytes(raw)
    reader = ShardReader(store, shards)
    fails(reader, "frame 1 cannot be decompressed", size=192)
    assert np.array_equal(reader.read([ShardSpan(0, 0, 64)]), content[:64])
    assert np.array_equal(reader.read([ShardSpan(0, 128, 64)]), content[128:])


def test_a_decompression_bomb_is_refused_before_anything_is_allocated():
    bomb = compress_frame(bytes(256 << 20), 3)
    assert len(bomb) < 100_000
    declared = 100
    tracemalloc.start()
    fails(forged([bomb], [(len(bomb), declared)], declared), "contradicts the seek table")
    fails(forged([bomb], [(len(bomb), 256 << 20)], declared), "do not hold the declared number")
    fails(forged([bomb], [(len(bomb), 256 << 20)], 256 << 20), "frame 0 is too large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_frame_that_does_not_state_its_size_is_refused():
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    fails(forged([silent], [(len(silent), 100)], 100), "contradicts the seek table")


def test_tables_that_do_not_fit_the_file_are_refused():
    frame = compress_frame(bytes(range(100)), 1)
    size = len(frame)
    assert forged([frame], [(size, 100)], 100).read([ShardSpan(0, 9, 1)]) == [9]  # control
    fails(forged([frame], [(size - 1, 100)], 100), "do not fill the file")
    fails(forged([frame], [(size, 100), (0, 100)], 200), "cannot be decompressed", size=200)
    fails(forged([frame, b"more"], [(size + 4, 100)], 100), "cannot be decompressed")
    raw = frame + encode_seek_table([(size, 100)])
    huge = raw[:-9] + struct.pack("<IBI", MAX_FRAMES, 0, 0x8F92EAB1)
    strange = raw[:-5] + bytes([0x04]) + raw[-4:]
    moved = raw[: size + 1] + b"\0" + raw[size + 2 :]
    for content, message in (
        (huge, "truncated"),
        (strange, "unknown kind"),
        (moved, "does not match its footer"),
    ):
        shard = ShardInfo(0, NAME, len(content), "", 0, "zstd", 100)
        fails(ShardReader(MemoryStore({NAME: content}), [shard]), message)


def test_parts_outside_the_content_and_unknown_methods_are_refused(rng):
    store, shards = compressed(words(rng, 100))
    with pytest.raises(ShardError, match="too short"):
        ShardReader(store, shards).read([ShardSpan(0, 90, 11)])
    for change in ({"compression": "lzma"}, {"uncompressed_size": None}):
        with pytest.raises(ShardError, match="unknown compression"):
            ShardReader(store, [replace(shards[0], **change)]).read([ShardSpan(0, 0, 1)])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=3),
    cut=st.none() | st.integers(0, 10**6),
    data=st.data(),
)
def test_damaged_shards_give_the_right_bytes_or_an_error(seed, changes, cut, data):
    content = words(np.random.default_rng(seed), 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_writer, "FRAME_SIZE", 100)
        store, shards = compressed(content)
    raw = bytearray(store.files[NAME])
    for place, bits in changes:
        raw[place % len(raw)] ^= bits
    if cut is not None:
        del raw[cut % len(raw) :]
    size = data.draw(st.sampled_from([shards[0].size, len(raw)]))
    reader = ShardReader(MemoryStore({NAME: bytes(raw)}), [replace(shards[0], size=size)])
    try:
        unpacked, error = reader.read([ShardSpan(0, 0, 300)]), ""
    except ShardError as refused:
        unpacked, error = content, str(refused)
    assert np.array_equal(unpacked, content)
    if error:
        assert NAME in error
        assert changes or cut is not None


def test_declaring_more_than_fits_into_memory_allocates_nothing(rng):
    store, shards = compressed(words(rng, 100))
    for size, message in (
        (1 << 30, "do not hold the declared number"),
        (1 << 60, "too much content"),
    ):
        reader = ShardReader(store, [replace(shards[0], uncompressed_size=size)])
        fails(reader, message, size=size)


def test_reading_many_shards_keeps_few_frames_in_memory(rng):
    content = words(rng, 40 * FRAME_SIZE)
    store, shards = compressed(content, shard_size=FRAME_SIZE)
    reader = ShardReader(store, shards)
    tracemalloc.start()
    for shard in shards:
        reader.read([ShardSpan(shard.index, 0, FRAME_SIZE)])
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert FRAME_SIZE < kept < 17 * FRAME_SIZE


def test_threads_may_share_a_reader(rng):
    content = words(rng, 3 * FRAME_SIZE)
    store, shards = compressed(content)
    reader = ShardReader(store, shards)
    starts = rng.integers(0, len(content) - 5000, 200)

    def is_right(start):
        result = reader.read([ShardSpan(0, int(start), 5000)])
        return np.array_equal(result, content[start : start + 5000])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, starts))


@pytest.mark.parametrize(("text", "level"), [("zstd", 3), ("zstd:1", 1), ("zstd:22", 22)])
def test_a_method_and_its_level_are_read(text, level):
    assert parse_compression(text) == Compression(level)
    assert parse_compression(str(parse_compression(text))) == Compression(level)


@pytest.mark.parametrize("text", ["", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:x", "gzip:3"])
def test_unknown_methods_and_levels_are_usage_errors(text):
    with pytest.raises(UsageError, match="`compress`"):
        parse_compression(text)
