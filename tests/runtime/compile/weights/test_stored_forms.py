"""Matrices lie on the GPU as stored, expanded or transposed, and give the logits of torch."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_device.arena import DeviceArena
from rdrr_device.dry_run import DryRunArena
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.choice.storage import choose_storage
from rdrr_runtime.compile.weights.rows import _transposed
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, stepped
from support.hints import CONTEXT, EXACT, package_of, policy, served
from support.packages import VOCAB, llama_manifest, write_random_package


@pytest.mark.parametrize(("value", "size"), [("dequant_f16", 2), ("dequant_f32", 4)])
@pytest.mark.parametrize("layout", ["row", "column", "flat"])
def test_the_reported_size_of_weights_is_that_after_expansion(
    device, tmp_path, rng, layout, value, size
):
    package = package_of(tmp_path, rng, layout=layout)
    arena = DryRunArena(device.capabilities)
    options = {"context": CONTEXT, "kv_dtype": "f16"}
    hinted = Plan(package, arena, policy(q4kMatmul=value), **options).weights
    plain = Plan(package, arena, Policy(), **options).weights
    products = [name for name in hinted.matrices if "proj" in name]
    shapes = {name: package.tensor(name).shape for name in products}
    assert {name: hinted.matrices[name].size for name in products} == {
        name: n * k * size for name, (n, k) in shapes.items()
    }
    assert {hinted.matrices[name].layout for name in products} == {Layout.ROW}
    assert {plain.matrices[name].dtype.name for name in products} == {"Q4_K"}


def test_only_matrices_that_are_multiplied_are_expanded(device, tmp_path, rng):
    """A tied embedding is also the matrix of the head; an untied one is only looked up."""
    manifest = llama_manifest("Q8_0", embedding="Q8_0")
    tied = write_random_package(tmp_path / "tied", manifest, rng)
    hints = policy(q4kMatmul="dequant_f16")
    options = {"context": CONTEXT, "kv_dtype": "f16"}
    plan = Plan(tied, DryRunArena(device.capabilities), hints, **options)
    assert plan.weights.matrices["model.embed_tokens.weight"].dtype.name == "F16"
    preferences = Preferences(hints, software=True)
    table = choose_storage(preferences, DTYPES["Q8_0"], Layout.ROW, 384, matmul=False)
    assert table.dtype.name == "Q8_0"


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [pytest.param("Q5_0", "row", marks=pytest.mark.thorough), ("Q5_K", "column")],
)
def test_every_block_type_is_read_as_it_is_stored(device, tmp_path, rng, dtype, layout):
    package = package_of(tmp_path, rng, dtype=dtype, layout=layout, layers=1)
    ids = rng.integers(0, VOCAB, 24).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    assert not any("expanded" in decision.reason for decision in backend.info.decisions)
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 20)
    assert relative_error(stepped(backend, ids, 20), reference) < EXACT
    backend.close()


def test_a_matrix_that_no_kernel_reads_is_expanded_exactly_and_reported(device, tmp_path, rng):
    # Rows of 288 in the output projection.
    manifest = llama_manifest("Q5_K", "flat", head_dim=72, layers=1)
    package = write_random_package(tmp_path / "package", manifest, rng)
    ids = rng.integers(0, VOCAB, 12).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    reasons = {
        decision.reason for decision in backend.info.decisions if "o_proj.weight" in decision.op
    }
    note = "Q5_K expanded to F32 at load, as its flat blocks cross rows within a unit of weights"
    assert reasons == {note}
    assert not any(
        "expanded" in decision.reason
        for decision in backend.info.decisions
        if "q_proj" in decision.op
    )
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 10)
    assert relative_error(stepped(backend, ids, 10), reference) < EXACT
    backend.close()


def test_weights_beyond_the_range_of_f16_are_an_error_with_a_hint(device, tmp_path, rng):
    package = package_of(tmp_path, rng)
    path = tmp_path / "package" / "shard_00000.bin"
    data = bytearray(path.read_bytes())
    at = package.tensor("model.layers.1.mlp.up_proj.weight").offset
    data[at : at + 2] = np.array([60000.0], "<f2").tobytes()
    path.write_bytes(data)
    options = {"context": CONTEXT, "device": device}
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj.*dequant_f32"):
        GpuBackend(package, policy=policy(q4kMatmul="dequant_f16"), **options)
    GpuBackend(package, policy=policy(q4kMatmul="dequant_f32"), **options).close()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_column_major_scalars_become_row_major_with_the_same_bits(device, tmp_path, rng, dtype):
    package = package_of(tmp_path, rng, dtype, "column")
    arena = DeviceArena(device)
    plan = Plan(package, arena, Policy(), context=CONTEXT, kv_dtype="f16")
    choices = [decision for decision in plan.weights.decisions if "proj" in decision.op]
    assert {choice.reason for choice in choices} == {f"{dtype} transposed to row-major at load"}
    for choice in choices:
        matrix = plan.weights.matrices[choice.op]
        stored = np.asarray(package.read(choice.op)).view(f"V{DTYPES[dtype].block_bytes}")
        assert matrix.layout is Layout.ROW
        (part,) = matrix.parts
        expected = stored.reshape(matrix.k, matrix.n).T.tobytes()
        ours = np.asarray(device.read(part.slice)).tobytes()
        assert ours[: len(expected)] == expected
        assert not any(ours[len(expected) :])
    arena.dispose()


@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
def test_columns_that_are_read_in_parts_are_transposed_to_whole_rows(rng, limit):
    n, k = 37, 52
    columns = rng.integers(0, 1 << 16, (k, n), dtype=np.uint16)
    parts = (columns[first : first + 9].view(np.uint8) for first in range(0, k, 9))
    rows = list(_transposed(parts, DTYPES["F16"], (n, k), limit))
    assert [len(row) for row in rows[:-1]] == [max(1, limit // (2 * k))] * (len(rows) - 1)
    assert np.concatenate(rows).tobytes() == columns.T.tobytes()


def test_column_major_scalars_run_in_row_major_kernels_and_agree_with_torch(device, tmp_path, rng):
    package = package_of(tmp_path, rng, "F16", "column", layers=1)
    ids = rng.integers(0, VOCAB, 16).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    kernels = served(backend.info.decisions)
    assert kernels["decode layer 0 qkv"] == "matvec.f16,f16,f16"
    assert kernels["decode l0.down_proj"] == "matvec.f16"
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 12)
    assert relative_error(stepped(backend, ids, 12), reference) < EXACT
    backend.close()
