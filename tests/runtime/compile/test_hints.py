"""Hints decide which kernels run, and the logits stay within the tolerance of torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.arena import Arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.dry_run import DryRunArena
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.compile.attention import AttentionRequest, choose_attention
from rdrr_runtime.compile.decision import unhonoured
from rdrr_runtime.compile.hints import Policy, resolve
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL, SMALL_WINDOW
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.compile.storage import choose_storage
from rdrr_runtime.compile.weight_rows import _transposed
from rdrr_runtime.exec.plan import Plan, decisions_for
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.attention import AttentionKernel
from rdrr_runtime.phases.attention_spec import AttentionSpec
from rdrr_runtime.phases.context import OpContext, State
from rdrr_runtime.phases.kv_cache import KvSpec
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, stepped
from support.packages import VOCAB, llama_manifest, write_random_package

CONTEXT = 96
EXACT, ROUNDED, INT8 = 1e-5, 2e-3, 5e-2
"""Largest relative errors with unchanged weights, with weights rounded to f16, and with int8
activations."""

# Hints, layout of the matrices, the kernel of each op, tolerance. Independent keys share a case,
# since a driver takes a while to compile each kernel.
OBEYED = {
    "no hint": ({}, "row", {"decode l1.down_proj": "matvec.q4_k"}, EXACT),
    "fused_q4k, streaming": (
        {"q4kMatmul": "fused_q4k", "attentionDecode": "streaming", "attentionPrefill": "streaming"},
        "row",
        {
            "decode l1.down_proj": "matvec.q4_k",
            "prefill l1.down_proj": "matmul_tiled.q4_k",
            "decode l1.attn": "attention.streaming",
            "prefill l1.attn": "attention.streaming",
        },
        EXACT,
    ),
    "fused_q4k, column, split_kv": (
        {"q4kMatmul": "fused_q4k", "attentionDecode": "split_kv", "attentionPrefill": "split_kv"},
        "column",
        {
            "decode l1.down_proj": "matvec.q4_k",
            "prefill l1.down_proj": "matmul_tiled.q4_k",
            "decode l1.attn": "attention.split_kv",
            "prefill l1.attn": "attention.split_kv",
        },
        EXACT,
    ),
    "fused_q4k, flat": (
        {"q4kMatmul": "fused_q4k"},
        "flat",
        {"decode l1.down_proj": "matvec.q4_k", "prefill l1.gate_proj": "matmul_tiled.q4_k"},
        EXACT,
    ),
    "fused_q4k_int8": (
        {"q4kMatmul": "fused_q4k_int8"},
        "row",
        {
            "decode layer 1 qkv": "matvec.q4_k,q4_k,q4_k.int8",
            "decode l1.down_proj": "matvec.q4_k.int8",
            "prefill l1.down_proj": "matmul_int8.q4_k",
        },
        INT8,
    ),
    "fused_q4k_int8, column": (
        {"q4kMatmul": "fused_q4k_int8"},
        "column",
        {
            "decode layer 1 qkv": "matvec.q4_k,q4_k,q4_k.int8",
            "decode l1.down_proj": "matvec.q4_k.int8",
            "prefill l1.down_proj": "matmul_int8.q8_0",
        },
        INT8,
    ),
    "dequant_f16, tiled": (
        {"q4kMatmul": "dequant_f16", "f16Matmul": "tiled"},
        "row",
        {"decode l1.down_proj": "matmul_tiled.f16", "decode head": "matmul_tiled.f16"},
        ROUNDED,
    ),
    "dequant_f16, column, tiled_large": (
        {
            "q4kMatmul": "dequant_f16",
            "attentionDecode": "tiled_large",
            "attentionPrefill": "tiled_large",
        },
        "column",
        {
            "decode l1.down_proj": "matvec.f16",
            "decode l1.attn": "attention_tiled.16",
            "prefill l1.attn": "attention_tiled.16",
        },
        ROUNDED,
    ),
    "dequant_f16, flat": (
        {"q4kMatmul": "dequant_f16"},
        "flat",
        {"decode l1.down_proj": "matvec.f16"},
        ROUNDED,
    ),
    "dequant_f32, tiled_small": (
        {
            "q4kMatmul": "dequant_f32",
            "attentionDecode": "tiled_small",
            "attentionPrefill": "tiled_small",
        },
        "row",
        {
            "decode l1.down_proj": "matvec.f32",
            "decode l1.attn": "attention_tiled.8",
            "prefill l1.attn": "attention_tiled.8",
        },
        EXACT,
    ),
    "dequant_f32, flat": (
        {"q4kMatmul": "dequant_f32"},
        "flat",
        {"prefill l1.gate_proj": "matmul_tiled.f32"},
        EXACT,
    ),
    "gemv": ({"f16Matmul": "gemv"}, "row", {"decode head": "matvec.f16"}, EXACT),
}


def policy(source: str = "run flag", **hints: str) -> Policy:
    return resolve({source: hints})


def served(choices) -> dict[str, str]:
    """Return the name and first variant of each op's kernel, and whether it multiplies in int8."""
    kernels = {f"{one.step} {one.op}": one.kernel for one in choices}
    return {
        op: ".".join(label.split(".")[:2]) + ".int8" * label.endswith(".int8")
        for op, label in kernels.items()
    }


def package_of(tmp_path, rng, dtype="Q4_K", layout="row"):
    return write_random_package(tmp_path / "package", llama_manifest(dtype, layout), rng)


@pytest.mark.parametrize("case", OBEYED.values(), ids=OBEYED)
def test_a_hint_decides_the_kernel_and_the_logits_stay_those_of_torch(device, tmp_path, rng, case):
    hints, layout, expected, tolerance = case
    package = package_of(tmp_path, rng, layout=layout)
    ids = rng.integers(0, VOCAB, 24).tolist()
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 20)
    backend = GpuBackend(
        package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy(**hints)
    )
    kernels = served(backend.info.decisions)
    assert {op: kernels[op] for op in expected} == expected
    assert unhonoured(backend.info.decisions) == ()
    error = relative_error(stepped(backend, ids, 20), reference)
    backend.close()
    assert error < tolerance
    if tolerance > EXACT:  # the error proves that the hint reached the arithmetic
        assert error > EXACT


@pytest.mark.parametrize(("value", "size"), [("dequant_f16", 2), ("dequant_f32", 4)])
@pytest.mark.parametrize("layout", ["row", "column", "flat"])
def test_the_reported_size_of_weights_is_that_after_expansion(
    device, tmp_path, rng, layout, value, size
):
    package = package_of(tmp_path, rng, layout=layout)
    arena = DryRunArena(device)
    options = {"context": CONTEXT, "kv_dtype": "f16"}
    hinted = Plan(package, device, arena, policy(q4kMatmul=value), **options).weights
    plain = Plan(package, device, arena, Policy(), **options).weights
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
    plan = Plan(tied, device, DryRunArena(device), hints, **options)
    assert plan.weights.matrices["model.embed_tokens.weight"].dtype.name == "F16"
    preferences = Preferences(hints, software=True)
    table = choose_storage(preferences, DTYPES["Q8_0"], Layout.ROW, 384, matmul=False)
    assert table.dtype.name == "Q8_0"


@pytest.mark.parametrize(("dtype", "layout"), [("Q5_0", "row"), ("Q5_K", "column")])
def test_every_block_type_is_read_as_it_is_stored(device, tmp_path, rng, dtype, layout):
    package = package_of(tmp_path, rng, dtype=dtype, layout=layout)
    ids = rng.integers(0, VOCAB, 24).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    assert not any("expanded" in one.reason for one in backend.info.decisions)
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 20)
    assert relative_error(stepped(backend, ids, 20), reference) < EXACT
    backend.close()


def test_a_matrix_that_no_kernel_reads_is_expanded_exactly_and_reported(device, tmp_path, rng):
    manifest = llama_manifest("Q5_K", "flat", head_dim=72)  # rows of 288 in the output projection
    package = write_random_package(tmp_path / "package", manifest, rng)
    ids = rng.integers(0, VOCAB, 12).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    reasons = {one.reason for one in backend.info.decisions if "o_proj.weight" in one.op}
    note = "Q5_K expanded to F32 at load, as its flat blocks cross rows within a unit of weights"
    assert reasons == {note}
    assert not any("expanded" in one.reason for one in backend.info.decisions if "q_proj" in one.op)
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


@pytest.mark.parametrize(
    ("software", "stated", "int8"),
    [
        (False, {}, True),
        (True, {}, False),
        (True, {"run flag": {"q4kMatmul": "fused_q4k_int8"}}, True),
        (False, {"manifest": {"q4kMatmul": "fused_q4k"}}, False),
        (False, {"manifest": {"computePrecision": "f32"}}, False),
        (False, {"manifest": {"computePrecision": "f16"}}, False),
        (
            False,
            {
                "run flag": {"q4kMatmul": "fused_q4k_int8"},
                "manifest": {"computePrecision": "f32"},
            },
            True,
        ),
        (
            False,
            {
                "run flag": {"computePrecision": "f32"},
                "manifest": {"q4kMatmul": "fused_q4k_int8"},
            },
            False,
        ),
    ],
)
def test_int8_follows_the_strongest_hint_and_otherwise_the_adapter(software, stated, int8):
    assert Preferences(resolve(stated), software).arithmetic.int8 is int8


def test_a_precision_of_the_same_source_overrules_int8(device, tmp_path, rng):
    package = package_of(tmp_path, rng)
    hints = {"q4kMatmul": "fused_q4k_int8", "computePrecision": "f32"}
    lines = unhonoured(decisions_for(package, device, policy(**hints), CONTEXT, "f16"))
    assert len(lines) == 1
    assert "computePrecision=f32 (run flag) excludes int8" in lines[0]


def test_an_unhonoured_hint_is_reported_once(plain_device, tmp_path, rng):
    package, device = package_of(tmp_path, rng, "F16"), plain_device
    hints, said = {"f16Matmul": "gemv_subgroup"}, "the device has no feature subgroup"
    (line,) = unhonoured(
        decisions_for(package, device, policy("manifest", **hints), CONTEXT, "f16")
    )
    ((key, value),) = hints.items()
    assert f"hint {key}={value} is not honoured: " in line
    assert said in line
    assert "set by the manifest" in line
    assert unhonoured(decisions_for(package, device, Policy(), CONTEXT, "f16")) == ()


@pytest.mark.parametrize(
    ("layout", "kernel"), [("row", "matvec_rows.q4_k"), ("column", "matmul_int8.q8_0")]
)
def test_a_small_batch_uses_int8_if_a_hint_requests_it(device, tmp_path, rng, layout, kernel):
    package, hints = package_of(tmp_path, rng, layout=layout), policy(q4kMatmul="fused_q4k_int8")
    choices = decisions_for(package, device, hints, CONTEXT, "f16", specs=(SMALL_WINDOW,))
    (found,) = (one for one in choices if one.op == "l0.down_proj")
    assert (found.step, "int8 activations" in found.reason) == (SMALL_WINDOW.name, True)
    assert found.kernel.startswith(kernel)


F16_BY = {
    "the exact path": ({"computePrecision": "f32"}, "matmul_tiled.f16"),
    "tiled": ({"q4kMatmul": "fused_q4k_int8", "f16Matmul": "tiled"}, "matmul_tiled.f16"),
    "int8": ({"q4kMatmul": "fused_q4k_int8"}, "matmul_int8.q8_0"),
}


@pytest.mark.parametrize("case", F16_BY.values(), ids=F16_BY)
def test_prompts_use_int8_with_16_bit_weights_where_activations_are_int8(
    device, tmp_path, rng, case
):
    hints, expected = case
    package = package_of(tmp_path, rng, dtype="F16")
    choices = decisions_for(package, device, policy(**hints), CONTEXT, "f16")
    kernels = served(choices)
    products = [op for op in kernels if op.startswith("prefill l") and op.endswith("proj")]
    assert len(products) == 14
    assert {kernels[op] for op in products} == {expected}
    assert unhonoured(choices) == ()


def test_logits_of_16_bit_weights_in_int8_are_close_to_torch(device, tmp_path, rng):
    package = package_of(tmp_path, rng, dtype="F16")
    ids = rng.integers(0, VOCAB, 24).tolist()
    hints = policy(q4kMatmul="fused_q4k_int8")
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=hints)
    reference = CpuBackend(package, context=CONTEXT)
    error = relative_error(backend.logits(ids, 0), reference.logits(ids, 0))
    backend.close()
    assert EXACT < error < INT8  # the error proves that the hint reached the arithmetic


@pytest.mark.parametrize(
    ("software", "hints", "int8"),
    [
        (False, {}, True),
        (True, {}, False),
        (True, {"q4kMatmul": "fused_q4k_int8"}, True),
        (False, {"f16Matmul": "tiled"}, False),
        (False, {"computePrecision": "f32"}, False),
        (False, {"computePrecision": "f16"}, False),
        (False, {"q4kMatmul": "dequant_f16"}, False),
    ],
)
def test_16_bit_weights_are_rounded_for_many_rows_where_hints_allow_int8(software, hints, int8):
    assert Preferences(policy(**hints), software).rounds_16_bit_weights is int8


def _decode_sources(device, package, **hints: str) -> list[str]:
    arena = DryRunArena(device)
    plan = Plan(package, device, arena, policy(**hints), context=CONTEXT, kv_dtype="f16")
    lowered = plan.lowered(DECODE)
    return [
        one.record.source
        for one in (*lowered.body, *lowered.head)
        if one.name.startswith(("matvec", "gemv"))
    ]


def test_gemv_uses_no_subgroups_and_gemv_subgroup_does(device, tmp_path, rng):
    package = package_of(tmp_path, rng, dtype="F16")
    with_them = _decode_sources(device, package, f16Matmul="gemv_subgroup")
    without = _decode_sources(device, package, f16Matmul="gemv")
    assert with_them
    assert all("subgroupAdd" in source for source in with_them)
    assert len(without) == len(with_them)
    assert not any("subgroupAdd" in source for source in without)


def test_a_missing_device_feature_overrules_the_hint_and_is_reported(
    device, plain_device, tmp_path, rng
):
    package = package_of(tmp_path, rng, dtype="F16")
    wanted = policy(f16Matmul="gemv_subgroup")
    assert unhonoured(decisions_for(package, device, wanted, CONTEXT, "f16")) == ()
    (line,) = unhonoured(decisions_for(package, plain_device, wanted, CONTEXT, "f16"))
    assert "the device has no feature subgroup" in line


def _attention(value: str, *, rows: int, storage: int = 32768, binding: int = 1 << 27):
    empty = BufferSlice(None, 0, 4)
    ctx = OpContext(State(empty, empty), rows, workgroup_storage=storage)
    spec = AttentionSpec(heads=8, cache=KvSpec(2, 256, 4096), scale=1.0)
    hints = policy(attentionPrefill=value, attentionDecode=value)
    found = choose_attention(AttentionRequest(spec, ctx, binding), Preferences(hints, True))
    return found.candidate.kernel, found.reason


@pytest.mark.parametrize("rows", [1, 64], ids=["decode", "prefill"])
@pytest.mark.parametrize(
    ("value", "limits"),
    [
        ("tiled_large", {"storage": 16384}),
        ("tiled_small", {"storage": 4096}),
        ("split_kv", {"binding": 1 << 16}),
    ],
)
def test_a_variant_beyond_the_devices_limits_falls_back_and_is_reported(value, limits, rows):
    which, why = _attention(value, rows=rows, **limits)
    assert which is AttentionKernel.STREAMING
    assert why.unmet is not None
    assert why.unmet.obstacle in why.text
    assert _attention(value, rows=rows)[0] is AttentionKernel(value)


def test_without_a_hint_the_rows_and_limits_decide_the_kernel():
    assert _attention("auto", rows=64)[0] is AttentionKernel.TILED_LARGE
    assert _attention("auto", rows=64, storage=16384)[0] is AttentionKernel.TILED_SMALL
    assert _attention("auto", rows=64, storage=4096)[0] is AttentionKernel.STREAMING
    assert _attention("auto", rows=1)[0] is AttentionKernel.SPLIT_KV


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_column_major_scalars_become_row_major_with_the_same_bits(device, tmp_path, rng, dtype):
    package = package_of(tmp_path, rng, dtype, "column")
    arena = Arena(device)
    plan = Plan(package, device, arena, Policy(), context=CONTEXT, kv_dtype="f16")
    choices = [one for one in plan.weights.decisions if "proj" in one.op]
    assert {one.reason for one in choices} == {f"{dtype} transposed to row-major at load"}
    for one in choices:
        matrix = plan.weights.matrices[one.op]
        stored = np.asarray(package.read(one.op)).view(f"V{DTYPES[dtype].block_bytes}")
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
    assert [len(one) for one in rows[:-1]] == [max(1, limit // (2 * k))] * (len(rows) - 1)
    assert np.concatenate(rows).tobytes() == columns.T.tobytes()


def test_column_major_scalars_run_in_row_major_kernels_and_agree_with_torch(device, tmp_path, rng):
    package = package_of(tmp_path, rng, "F16", "column")
    ids = rng.integers(0, VOCAB, 16).tolist()
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    kernels = served(backend.info.decisions)
    assert kernels["decode layer 1 qkv"] == "matvec.f16,f16,f16"
    assert kernels["decode l1.down_proj"] == "matvec.f16"
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 12)
    assert relative_error(stepped(backend, ids, 12), reference) < EXACT
    backend.close()


def test_a_dry_run_makes_the_same_decisions_as_loading(device, tmp_path, rng):
    package = package_of(tmp_path, rng, layout="column")
    hints = policy(q4kMatmul="dequant_f16")
    before = device.counters.copy()
    planned = decisions_for(package, device, hints, CONTEXT, "f16")
    work = device.counters.since(before)
    assert (work.buffer_creates, work.bytes_written) == (0, 0)
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=hints)
    assert backend.info.decisions == planned
    backend.close()


@pytest.mark.parametrize(
    ("hints", "kernels"),
    [
        ({}, {"decode": "matvec", "small window": "gemv_row", "prefill": "matmul_int8"}),
        (
            {"q4kMatmul": "fused_q4k_int8"},
            {"decode": "matvec", "small window": "matmul_int8", "prefill": "matmul_int8"},
        ),
    ],
    ids=["auto", "int8 requested"],
)
def test_small_batches_with_column_major_weights_use_int8_only_if_a_hint_requests_it(
    device, tmp_path, rng, monkeypatch, hints, kernels
):
    monkeypatch.setattr(device, "info", replace(device.info, software=False))
    package = package_of(tmp_path, rng, layout="column")
    specs = (DECODE, SMALL_WINDOW, PREFILL)
    choices = decisions_for(package, device, policy(**hints), 64, "f16", specs=specs)
    assert unhonoured(choices) == ()
    for step, kernel in kernels.items():
        (found,) = [one for one in choices if one.step == step and one.op == "l0.down_proj"]
        assert found.kernel.startswith(kernel)
