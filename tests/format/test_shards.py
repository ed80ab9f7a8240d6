"""Write a stream as shards, and read spans of it back."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format.errors import FormatError, ShardError
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ALIGNMENT, ShardInfo, ShardSpan, align_up, plan_spans
from rdrr_format.stores import LocalStore, MemoryStore


def written(tensors, shard_size, store):
    """Write tensors; return the spans of each, and the shards."""
    writer, spans = ShardWriter(store, shard_size), []
    for tensor in tensors:
        writer.align()
        spans.append(writer.write(tensor))
    return spans, writer.close()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=8),
    shard_size=st.sampled_from([256, 512, 1000, 1024, 5000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_tensors_are_read_back_and_shards_are_filled_exactly(sizes, shard_size, seed):
    random = np.random.default_rng(seed)
    tensors = [random.integers(0, 256, size, np.uint8) for size in sizes]
    store = MemoryStore()
    spans, shards = written(tensors, shard_size, store)
    reader = ShardReader(store, shards)
    for tensor, runs in zip(tensors, spans, strict=True):
        assert np.array_equal(reader.read(runs), tensor)
        if len(tensor) > 2:
            assert np.array_equal(reader.read_range(runs, 1, len(tensor) - 2), tensor[1:-1])
    assert all(shard.size == shard_size for shard in shards[:-1])
    assert all(0 < shard.size <= shard_size for shard in shards[-1:])
    for index, shard in enumerate(shards):
        content = store.files[shard.filename]
        assert shard.index == index
        assert shard.filename == f"shard_{index:05d}.bin"
        assert shard.offset == sum(earlier.size for earlier in shards[:index])
        assert (shard.size, shard.hash) == (len(content), hashlib.sha256(content).hexdigest())
        reader.verify(index)


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 10_000), size=st.integers(0, 10_000), shard=st.integers(1, 3000))
def test_planned_spans_cover_the_bytes_in_order(start, size, shard):
    at = start
    for span in plan_spans(start, size, shard):
        assert span.shard_index * shard + span.offset == at
        assert 0 < span.size <= shard - span.offset
        at += span.size
    assert at == start + size


def test_tensors_start_aligned_and_the_padding_is_zero():
    store = MemoryStore()
    spans, shards = written([b"\xff" * 10, b"\xff" * 10], 1 << 20, store)
    assert [run[0].offset for run in spans] == [0, ALIGNMENT]
    assert shards[0].size == ALIGNMENT + 10
    assert store.files["shard_00000.bin"][10:ALIGNMENT] == bytes(ALIGNMENT - 10)
    assert (align_up(0), align_up(1), align_up(256)) == (0, 256, 256)


def test_a_single_span_of_a_local_shard_is_a_view_of_the_file(tmp_path):
    spans, shards = written([bytes(range(100))], 1 << 20, LocalStore(tmp_path))
    result = ShardReader(LocalStore(tmp_path), shards).read(spans[0])
    assert isinstance(result, np.memmap)
    assert bytes(result) == bytes(range(100))


def test_arrays_of_any_type_are_written_as_their_bytes():
    store = MemoryStore()
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    written([array, np.empty((0, 3), np.uint8)], 1 << 20, store)
    assert store.files["shard_00000.bin"][:24] == array.tobytes()


@pytest.fixture
def package(tmp_path):
    """Return a folder of three shards, and their descriptions."""
    store = LocalStore(tmp_path)
    spans, shards = written([bytes(range(250)) * 10], 1000, store)
    ShardReader(store, shards).verify(1)  # control: it is sound
    return store, shards, spans[0]


def test_a_missing_shard_is_named(package):
    store, shards, runs = package
    store.path("shard_00001.bin").unlink()
    reader = ShardReader(store, shards)
    with pytest.raises(ShardError, match=r"shard_00001.bin: shard is missing"):
        reader.verify(1)
    with pytest.raises(ShardError, match=r"shard_00001.bin"):
        reader.read(runs)


def test_a_short_shard_says_how_short(package):
    store, shards, runs = package
    path = store.path("shard_00001.bin")
    path.write_bytes(path.read_bytes()[:-1])
    reader = ShardReader(store, shards)
    with pytest.raises(ShardError, match=r"too short \(expected 1000 bytes, found 999 bytes\)"):
        reader.verify(1)
    with pytest.raises(ShardError, match="too short"):
        reader.read(runs)


def test_a_long_shard_is_refused(package):
    store, shards, _ = package
    path = store.path("shard_00002.bin")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ShardError, match="too long"):
        ShardReader(store, shards).verify(2)


def test_one_changed_bit_is_found(package):
    store, shards, _ = package
    path = store.path("shard_00000.bin")
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"shard_00000.bin: wrong hash"):
        ShardReader(store, shards).verify(0)


def test_upper_case_hashes_are_accepted(package):
    store, shards, _ = package
    first = shards[0]
    upper = ShardInfo(0, first.filename, first.size, first.hash.upper(), 0)
    ShardReader(store, [upper]).verify(0)


@pytest.mark.parametrize("index", [3, -1])
def test_a_span_in_a_shard_that_does_not_exist_is_refused(package, index):
    store, shards, _ = package
    with pytest.raises(ShardError, match="no such shard"):
        ShardReader(store, shards).read([ShardSpan(index, 0, 1)])


def test_a_negative_offset_is_refused(package):
    store, shards, _ = package
    with pytest.raises(ShardError, match=r"the offset is negative .*found -1"):
        ShardReader(store, shards).read([ShardSpan(0, -1, 1)])


def test_a_range_beyond_the_tensor_is_refused(package):
    store, shards, runs = package
    reader = ShardReader(store, shards)
    assert reader.read_range(runs, 2400, 100).size == 100  # control
    with pytest.raises(ShardError, match="expected 101 bytes, found 100"):
        reader.read_range(runs, 2400, 101)


def test_an_unknown_hash_algorithm_is_refused():
    with pytest.raises(FormatError, match="md5"):
        ShardWriter(MemoryStore(), 1000, "md5")


def test_a_shard_name_with_a_path_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    shard = ShardInfo(0, "../secret", 1, hashlib.sha256(b"x").hexdigest(), 0)
    reader = ShardReader(LocalStore(tmp_path / "package"), [shard])
    with pytest.raises(FormatError, match="plain file name"):
        reader.verify(0)
    with pytest.raises(FormatError, match="plain file name"):
        reader.read([ShardSpan(0, 0, 1)])
