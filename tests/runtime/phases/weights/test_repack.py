"""Tests of repacking on the device: every weight keeps its value and is where products read it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from rdrr_device.device import Device
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout, geometry
from rdrr_runtime.phases.rows.embed import embed
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import Uploader, upload_weight
from rdrr_runtime.phases.weights.repack import repack_kernel
from support.comparison import relative_error
from support.gpu import F32, UNITS_FIRST, Bench, random_tensor

Bytes = npt.NDArray[np.uint8]

BLOCKS = tuple(name for name, form in FORMATS.items() if not form.values)
LAYOUTS = (Layout.ROW, Layout.COLUMN)

# 32-bit words of a block in the previous layout: blocks as stored, with f16 scales widened to f32
# if the rest of the block would not have been aligned otherwise.
PREVIOUS_WORDS = {
    "Q4_K": 36,
    "Q5_K": 44,
    "Q6_K": 54,
    "Q8_0": 9,
    "Q4_0": 5,
    "Q4_1": 5,
    "Q5_0": 6,
    "Q5_1": 6,
    "MXFP4": 5,
}
# The same for column-major blocks that int8 products read: both factors of 256 outputs were f32.
PREVIOUS_COLUMN_WORDS = {"Q4_K": 38}


def dequantized(bench: Bench, weight: GpuWeight) -> F32:
    """Return all weights [N, K] as kernels dequantize them."""
    rows = weight.n
    x = bench.poisoned(rows, weight.k)
    bench.run(embed(bench.context(rows, tokens=range(rows)), weight, x, label="t"), rows)
    return bench.download(x, rows, weight.k)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(40, 320), (7, 36), (300, 128)], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_every_weight_is_the_same(bench: Bench, rng, name, layout, shape) -> None:
    raw, values = random_tensor(rng, name, layout, shape)
    weight = upload_weight(bench.arena, DTYPES[name], layout, shape, raw, "w")
    assert relative_error(dequantized(bench, weight), values) < 1e-6


@pytest.mark.parametrize("name", [block for block in BLOCKS if DTYPES[block].block_elements == 256])
def test_every_weight_of_flat_blocks_that_cross_rows_is_the_same(bench: Bench, rng, name) -> None:
    shape = (5, 320)
    raw, values = random_tensor(rng, name, Layout.FLAT, shape)
    size = 3 * DTYPES[name].block_bytes
    chunks = (raw[first : first + size] for first in range(0, raw.size, size))
    weight = upload_weight(bench.arena, DTYPES[name], Layout.FLAT, shape, chunks, "w")
    assert relative_error(dequantized(bench, weight), values) < 1e-6


def transposed_planes(weight: GpuWeight, raw: Bytes) -> Bytes:
    """Return the bytes of the only part of a matrix in row order, with its units first."""
    form, rows, units = weight.form, weight.parts[0].rows, weight.units
    ends = np.cumsum([16 * size for size in form.plane_sizes(rows, units)])
    low, high, scales, rest = np.split(raw, ends[:3])

    def transposed(plane: Bytes, count: int) -> Bytes:
        """Exchange rows and the `count` entries of each row, before the padding."""
        entry = plane.size // (rows * count)
        entries, padding = np.split(plane, [rows * count * entry])
        swapped = entries.reshape(rows, count, entry).swapaxes(0, 1)
        return np.concatenate([swapped.reshape(-1), padding])

    along_k = [] if form.column else [transposed(scales, units)]
    if not form.column and form.levels == 2:
        along_k.append(transposed(rest, units // 4))
    kept = [scales, rest] if form.column else [rest][form.levels - 1 :]
    return np.concatenate([transposed(low, units), transposed(high, units), *along_k, *kept])


@pytest.mark.parametrize(("name", "layout"), [*UNITS_FIRST, ("Q5_K", Layout.ROW)])
def test_the_planes_with_the_units_first_are_those_in_row_order_transposed(
    bench: Bench, rng, name, layout
) -> None:
    shape = (300, 320)
    raw, values = random_tensor(rng, name, layout, shape)
    by_row, first = (
        upload_weight(bench.arena, DTYPES[name], layout, shape, raw, "w", units_first=units_first)
        for units_first in (False, True)
    )
    planes, transposed = (
        bench.device.read(array.parts[0].slice).view(np.uint8) for array in (by_row, first)
    )
    assert np.array_equal(transposed, transposed_planes(by_row, planes))
    assert not np.array_equal(transposed, planes)  # the control
    assert relative_error(dequantized(bench, first), values) < 1e-6


@pytest.mark.parametrize(
    ("name", "layout", "k", "ordered"),
    [
        ("F16", Layout.ROW, 512, False),
        ("Q6_K", Layout.FLAT, 320, False),  # super-blocks cross rows
        ("Q6_K", Layout.FLAT, 512, True),
        ("Q8_0", Layout.FLAT, 320, True),
    ],
)
def test_units_are_first_where_the_format_can_have_it(
    bench: Bench, rng, name, layout, k, ordered
) -> None:
    raw, values = random_tensor(rng, name, layout, (8, k))
    weight = upload_weight(bench.arena, DTYPES[name], layout, (8, k), raw, "w", units_first=True)
    assert weight.form.units_first is ordered
    assert relative_error(dequantized(bench, weight), values) < 1e-6


@pytest.mark.parametrize("units_first", [False, True])
@pytest.mark.parametrize("layout", [*LAYOUTS, Layout.FLAT])
def test_a_matrix_beyond_the_binding_limit_is_split_by_outputs(
    bench: Bench, rng, layout, units_first, monkeypatch
) -> None:
    shape = (600, 192)
    raw, values = random_tensor(rng, "Q4_K", layout, shape)
    monkeypatch.setattr(type(bench.arena), "max_binding", 48_000)
    weight = upload_weight(
        bench.arena, DTYPES["Q4_K"], layout, shape, raw, "w", units_first=units_first
    )
    monkeypatch.undo()
    assert weight.form.units_first is (units_first and layout is not Layout.FLAT)
    assert len(weight.parts) > 1
    assert relative_error(dequantized(bench, weight), values) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_chunks_give_the_same_planes(bench: Bench, rng, layout, monkeypatch) -> None:
    shape = (300, 200)
    raw, values = random_tensor(rng, "Q6_K", layout, shape)
    size = geometry(DTYPES["Q6_K"], shape, layout).row_bytes
    chunks = (raw[first : first + 7 * size] for first in range(0, raw.size, 7 * size))
    monkeypatch.setattr("rdrr_runtime.phases.weights.packing.CHUNK_BYTES", 20 * size)
    weight = upload_weight(bench.arena, DTYPES["Q6_K"], layout, shape, chunks, "w")
    assert relative_error(dequantized(bench, weight), values) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(4096, 4096), (576, 1536), (128, 2048)], ids=str)
def test_a_matrix_takes_at_most_5_percent_more_memory_than_in_the_previous_layout(
    bench: Bench, name, layout, shape
) -> None:
    kind = DTYPES[name]
    stored = geometry(kind, shape, layout)
    words = PREVIOUS_WORDS[name]
    if layout is Layout.COLUMN:
        words = PREVIOUS_COLUMN_WORDS.get(name, words)
    before = 4 * words * stored.rows * stored.row_blocks
    size = allocate_weight(bench.arena, kind, layout, shape, "w").size
    assert size <= 1.05 * before, f"{size / before:.3f}"


def test_the_table_has_every_block_type() -> None:
    assert {name for name, kind in DTYPES.items() if kind.is_block} == set(BLOCKS)
    assert np.all([4 <= FORMATS[name].bits <= 8 for name in BLOCKS])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_kernel_that_is_compiled_ahead_is_the_one_that_runs(
    bench: Bench, rng, name, layout, monkeypatch
) -> None:
    ran = []
    bind = Device.bind

    def binding(device, dispatch):
        ran.append(dispatch.kernel)
        return bind(device, dispatch)

    monkeypatch.setattr(Device, "bind", binding)
    raw, _ = random_tensor(rng, name, layout, (256, 256))
    weight = upload_weight(bench.arena, DTYPES[name], layout, (256, 256), raw, "w")
    assert set(ran) == {repack_kernel(weight)}


def test_matrices_of_many_batches_are_those_of_one_upload_each(bench: Bench, rng, monkeypatch):
    """Batches end because the staging buffer is full, and because there are too many steps."""
    submits = bench.device.counters.submits
    monkeypatch.setattr("rdrr_runtime.phases.weights.repack_batch.STEPS", 3)
    shapes = [(n, 256) for n in (40, 8, 8, 8, 8, 96, 8)]
    tensors = [random_tensor(rng, "Q4_K", Layout.ROW, shape) for shape in shapes]
    kind = DTYPES["Q4_K"]
    weights = [allocate_weight(bench.arena, kind, Layout.ROW, shape_of, "w") for shape_of in shapes]
    size = 100 * kind.block_bytes
    with bench.arena.temporary() as temporary, Uploader(bench.arena, temporary, size) as uploader:
        for weight, shape, (raw, _) in zip(weights, shapes, tensors, strict=True):
            uploader.fill(weight, Layout.ROW, shape, [raw], "w")
    assert bench.device.counters.submits == submits + 4
    for weight, (_, values) in zip(weights, tensors, strict=True):
        assert relative_error(dequantized(bench, weight), values) < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_may_fill_more_parts_than_a_batch_has_steps(
    bench: Bench, rng, layout, monkeypatch
) -> None:
    monkeypatch.setattr("rdrr_runtime.phases.weights.repack_batch.STEPS", 2)
    kind, shape = DTYPES["Q6_K"], (1280, 256)
    raw, values = random_tensor(rng, "Q6_K", layout, shape)
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.arena), "max_binding", property(lambda _: 80 << 10))
        weight = allocate_weight(bench.arena, kind, layout, shape, "w")
    assert len(weight.parts) > 2
    with bench.arena.temporary() as temporary, Uploader(bench.arena, temporary) as uploader:
        uploader.fill(weight, layout, shape, [raw], "w")
    assert relative_error(dequantized(bench, weight), values) < 1e-6
