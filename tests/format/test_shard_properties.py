"""Shards of any tensors: spans, order, gaps, and resuming after a finished shard."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import blake3
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format.compression import Compression
from rdrr_format.integrity import hash_bytes, new_hasher
from rdrr_format.shard_reader import ShardReader
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import align_up, plan_spans
from rdrr_format.stores import MemoryStore

SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=8)
CUT = {
    "sizes": SIZES,
    "shard_size": st.integers(64, 5000),
    "align": st.sampled_from([1, 2, 32, 256, 1024]),
    "compression": st.sampled_from([None, Compression(1)]),
    "seed": st.integers(0, 2**32 - 1),
}
SEEDS = st.integers(0, 2**32 - 1)


def made(sizes, seed):
    random = np.random.default_rng(seed)
    return [random.integers(1, 30, size, np.uint8) for size in sizes]  # no zeros: gaps have those


def write(writer, tensors, align):
    spans = []
    for tensor in tensors:
        writer.align(align)
        spans.append(writer.write(tensor))
    return spans, writer.close()


@settings(max_examples=60, deadline=None)
@given(**CUT)
def test_tensors_are_at_their_planned_spans_in_order_without_overlap(
    sizes, shard_size, align, compression, seed
):
    tensors, store = made(sizes, seed), MemoryStore()
    writer = ShardWriter(store, shard_size, compression=compression)
    spans, shards = write(writer, tensors, align)
    reader = ShardReader(store, shards)
    contents = [shard.uncompressed_size or shard.size for shard in shards]
    taken = [np.zeros(size, bool) for size in contents]
    position = 0
    for tensor, runs in zip(tensors, spans, strict=True):
        start = align_up(position, align)
        assert 0 <= start - position < align
        assert start % align == 0
        assert runs == plan_spans(start, len(tensor), shard_size)
        assert np.array_equal(reader.read(runs), tensor)
        for run in runs:
            part = taken[run.shard_index][run.offset : run.offset + run.size]
            assert len(part) == run.size
            assert not part.any()
            part[:] = True
        position = start + len(tensor)
    stream = reader.read(plan_spans(0, sum(contents), shard_size))
    assert np.array_equal(stream != 0, np.concatenate([*taken, np.empty(0, bool)]))
    assert contents[:-1] == [shard_size] * (len(contents) - 1)
    assert sum(contents) == position


@settings(max_examples=40, deadline=None)
@given(**CUT, data=st.data())
def test_resuming_after_any_shard_gives_the_same_files(
    sizes, shard_size, align, compression, seed, data
):
    tensors, whole = made(sizes, seed), MemoryStore()
    stream = ShardWriter(whole, shard_size, compression=compression)
    spans, shards = write(stream, tensors, align)
    full = [s for s in shards if (s.uncompressed_size or s.size) == shard_size]
    done = full[: data.draw(st.integers(0, len(full)))]
    store = MemoryStore({shard.filename: whole.files[shard.filename] for shard in done})
    position = len(done) * shard_size
    reported = []
    writer = ShardWriter(
        store,
        shard_size,
        compression=compression,
        done=done,
        position=position,
        finished=reported.append,
    )
    total = sum(shard.uncompressed_size or shard.size for shard in shards)
    rest = plan_spans(position, total - position, shard_size)
    writer.write(ShardReader(whole, shards).read(rest))
    assert writer.close() == shards
    assert tuple(reported) == shards[len(done) :]
    assert store.files == whole.files
    reader = ShardReader(store, shards)
    for runs, tensor in zip(spans, tensors, strict=True):
        assert np.array_equal(reader.read(runs), tensor)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, size=st.integers(0, 5000), cuts=st.lists(st.integers(0, 5000), max_size=5))
def test_a_hash_does_not_depend_on_how_the_bytes_are_chunked(seed, size, cuts):
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
    whole = {"sha256": hashlib.sha256(data), "blake3": blake3.blake3(data)}
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    for name, expected in whole.items():
        running = new_hasher(name)
        for first, last in pairwise(edges):
            running.update(data[first:last])
        assert running.hexdigest() == hash_bytes(name, data) == expected.hexdigest()
