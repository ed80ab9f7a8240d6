"""Where weights lie on the device, and how they get there."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from rdrr_device.arena import DeviceArena, arena
from rdrr_device.dry_run import DryRunArena
from rdrr_device.late_device import LateDevice
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.weights import rows, upload
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.weights.formats import UNIT
from support.hints import CONTEXT, package_of


def contents(device, package) -> tuple[dict[str, bytes], int]:
    """Return the bytes of each matrix on the device, and how many buffers the load created."""
    created = device.counters.buffer_creates
    with arena(device, "weights") as owner:
        plan = Plan(package, owner, Policy(), context=CONTEXT, kv_dtype="f16")
        matrices = {
            name: b"".join(device.read(part.slice).tobytes() for part in matrix.parts)
            for name, matrix in plan.weights.matrices.items()
        }
    return matrices, device.counters.buffer_creates - created


def test_matrices_of_a_kind_lie_together_and_are_read_in_the_order_of_the_graph(
    device, tmp_path, rng
):
    """Otherwise one dispatch has a copy of most kernels for each buffer that the weights take."""
    package = package_of(tmp_path, rng, dtype="Q4_K", layout="row", layers=3)
    owner = DeviceArena(LateDevice(device.capabilities))
    plan = Plan(package, owner, Policy(), context=CONTEXT, kv_dtype="f16", upload=False)
    weights = plan.weights
    placed = sorted(weights.matrices.items(), key=lambda item: item[1].parts[0].slice.offset)
    kinds = [(str(matrix.dtype), matrix.n, matrix.k) for _, matrix in placed]
    assert len(list(groupby(kinds))) == len(set(kinds)) < len(kinds)
    names = [load.label for load in weights.matrix_loads]
    assert names == [use.name for use in plan.graph.weights() if use.name in weights.matrices]
    assert names != [name for name, _ in placed]


def test_columns_of_blocks_are_read_in_units_that_the_kernel_repacks(
    device, tmp_path, rng, monkeypatch
):
    """What is left over would be read back from mapped memory, which is slow."""
    package = package_of(tmp_path, rng, dtype="Q4_K", layout="column", layers=1)
    plan = Plan(
        package, DryRunArena(device.capabilities), Policy(), context=CONTEXT, kv_dtype="f16"
    )
    monkeypatch.setattr(rows, "CHUNK_BYTES", 300 * DTYPES["Q4_K"].block_bytes)
    sizes = [
        [len(read()) for read in load.reads(package)]
        for load in plan.weights.matrix_loads
        if load.kept.layout is Layout.COLUMN
    ]
    assert any(len(of_matrix) > 1 for of_matrix in sizes)
    assert all(size % UNIT == 0 for of_matrix in sizes for size in of_matrix)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("Q6_K", "row"), ("Q4_K", "column"), ("F16", "row"), ("Q8_0", "flat")],
)
def test_mapped_buffers_bring_the_same_weights(device, tmp_path, rng, monkeypatch, dtype, layout):
    package = package_of(tmp_path, rng, dtype=dtype, layout=layout, layers=1)
    monkeypatch.setattr(device, "info", replace(device.info, software=False))
    contents(device, package)  # creates what reads share
    written, fewer = contents(device, package)
    # In small pieces blocks of a column are left over for the next piece.
    for module in (rows, upload):
        monkeypatch.setattr(module, "CHUNK_BYTES", 7 * 1024)
    monkeypatch.setattr(upload, "FEWEST_MAPPED", 0)
    mapped, more = contents(device, package)
    assert more > fewer  # the mapped ones
    assert mapped == written
