"""Hints decide which kernels run, and the logits stay within the tolerance of torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import Capabilities
from rdrr_device.dry_run import DryRunArena
from rdrr_runtime.compile.choice.attention import AttentionRequest, choose_attention
from rdrr_runtime.compile.choice.decision import unhonoured
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL, SMALL_WINDOW
from rdrr_runtime.exec.plan import Plan, decisions_for
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.attention.attention import AttentionKernel
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.phases.context import OpContext, State
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, stepped
from support.hints import CONTEXT, EXACT, package_of, policy, served
from support.packages import VOCAB, llama_manifest, write_random_package

ROUNDED, INT8 = 2e-3, 5e-2
"""Largest relative errors with weights rounded to f16, and with int8 activations."""

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
        {"prefill l1.gate_proj": "gemv_row.f32"},
        EXACT,
    ),
    "gemv": ({"f16Matmul": "gemv"}, "row", {"decode head": "matvec.f16"}, EXACT),
}


IN_EVERY_RUN = ("fused_q4k_int8, column",)
"""Hints whose logits `make test` compares too: those that change how exactly products compute."""


@pytest.mark.parametrize("case", OBEYED.values(), ids=OBEYED)
def test_a_hint_decides_the_kernel(device, tmp_path, rng, case):
    hints, layout, expected, _ = case
    package = package_of(tmp_path, rng, layout=layout)
    choices = decisions_for(package, device.capabilities, policy(**hints), CONTEXT, "f32")
    kernels = served(choices)
    assert {op: kernels[op] for op in expected} == expected
    assert unhonoured(choices) == ()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in IN_EVERY_RUN else pytest.mark.thorough)
        for name, case in OBEYED.items()
    ],
)
def test_logits_stay_those_of_torch_with_every_hint(device, tmp_path, rng, case):
    hints, layout, _, tolerance = case
    package = package_of(tmp_path, rng, layout=layout, layers=1)
    ids = rng.integers(0, VOCAB, 32).tolist()
    reference = stepped(CpuBackend(package, context=CONTEXT), ids, 20)
    backend = GpuBackend(
        package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy(**hints)
    )
    error = relative_error(stepped(backend, ids, 20), reference)
    backend.close()
    assert error < tolerance
    if tolerance > EXACT:  # the error proves that the hint reached the arithmetic
        assert error > EXACT


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
    lines = unhonoured(decisions_for(package, device.capabilities, policy(**hints), CONTEXT, "f16"))
    assert len(lines) == 1
    assert "computePrecision=f32 (run flag) excludes int8" in lines[0]


def test_an_unhonoured_hint_is_reported_once(plain_device, tmp_path, rng):
    package, device = package_of(tmp_path, rng, "F16"), plain_device
    hints, said = {"f16Matmul": "gemv_subgroup"}, "the device has no feature subgroup"
    (line,) = unhonoured(
        decisions_for(package, device.capabilities, policy("manifest", **hints), CONTEXT, "f16")
    )
    ((key, value),) = hints.items()
    assert f"hint {key}={value} is not honoured: " in line
    assert said in line
    assert "set by the manifest" in line
    assert unhonoured(decisions_for(package, device.capabilities, Policy(), CONTEXT, "f16")) == ()


@pytest.mark.parametrize(
    ("layout", "kernel"), [("row", "matvec_rows.q4_k"), ("column", "matvec_rows.q8_0")]
)
def test_a_small_batch_uses_int8_if_a_hint_requests_it(device, tmp_path, rng, layout, kernel):
    package, hints = package_of(tmp_path, rng, layout=layout), policy(q4kMatmul="fused_q4k_int8")
    choices = decisions_for(
        package, device.capabilities, hints, CONTEXT, "f16", specs=(SMALL_WINDOW,)
    )
    (choice,) = (decision for decision in choices if decision.op == "l0.down_proj")
    assert (choice.step, "int8 activations" in choice.reason) == (SMALL_WINDOW.name, True)
    assert choice.kernel.startswith(kernel)


F16_BY = {
    "the exact path": ({"computePrecision": "f32"}, "gemv_row.f16"),
    "int8 for quantized weights": ({"q4kMatmul": "fused_q4k_int8"}, "gemv_row.f16"),
    "tiled": ({"q4kMatmul": "fused_q4k_int8", "f16Matmul": "tiled"}, "matmul_tiled.f16"),
    "int8": ({"f16Matmul": "int8"}, "matmul_int8.q8_0"),
}


@pytest.mark.parametrize("case", F16_BY.values(), ids=F16_BY)
def test_prompts_use_int8_with_16_bit_weights_only_by_a_hint_for_them(device, tmp_path, rng, case):
    hints, expected = case
    package = package_of(tmp_path, rng, dtype="F16")
    choices = decisions_for(package, device.capabilities, policy(**hints), CONTEXT, "f16")
    kernels = served(choices)
    products = [op for op in kernels if op.startswith("prefill l") and op.endswith("proj")]
    assert len(products) == 14
    assert {kernels[op] for op in products} == {expected}
    assert unhonoured(choices) == ()


@pytest.mark.thorough
def test_logits_of_16_bit_weights_in_int8_are_close_to_torch(device, tmp_path, rng):
    package = package_of(tmp_path, rng, dtype="F16")
    ids = rng.integers(0, VOCAB, 24).tolist()
    hints = policy(f16Matmul="int8")
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=hints)
    reference = CpuBackend(package, context=CONTEXT)
    error = relative_error(backend.logits(ids, 0), reference.logits(ids, 0))
    backend.close()
    assert EXACT < error < INT8  # the error proves that the hint reached the arithmetic


@pytest.mark.parametrize(
    ("software", "stated", "int8"),
    [
        (False, {}, False),
        (False, {"run flag": {"q4kMatmul": "fused_q4k_int8"}}, False),
        (False, {"run flag": {"f16Matmul": "tiled"}}, False),
        (False, {"manifest": {"f16Matmul": "int8"}}, True),
        (True, {"run flag": {"f16Matmul": "int8"}}, True),
        (False, {"run flag": {"f16Matmul": "int8", "computePrecision": "f32"}}, False),
        (
            False,
            {"run flag": {"f16Matmul": "int8"}, "manifest": {"computePrecision": "f16"}},
            True,
        ),
    ],
)
def test_16_bit_weights_are_rounded_only_where_a_hint_asks_for_it(software, stated, int8):
    assert Preferences(resolve(stated), software).scalar_arithmetic.int8 is int8


@pytest.mark.parametrize(("hints", "rounded"), [({}, False), ({"f16Matmul": "int8"}, True)])
def test_a_16_bit_matrix_beside_quantized_ones_is_rounded_only_by_its_hint(
    device, tmp_path, rng, hints, rounded
):
    manifest, quantized = llama_manifest("F16", "column"), llama_manifest("Q4_K", "column")
    for name, tensor in manifest["tensors"].items():
        if not name.endswith("up_proj.weight"):
            tensor |= quantized["tensors"][name] | {"offset": tensor["offset"]}
    package = write_random_package(tmp_path / "package", manifest, rng)
    wanted = policy(q4kMatmul="fused_q4k_int8", **hints)
    choices = decisions_for(
        package, device.capabilities, wanted, CONTEXT, "f16", specs=(PREFILL, SMALL_WINDOW)
    )
    kernels = {one.kernel for one in choices}
    assert "requantize.q4_k.column" in kernels
    assert ("requantize.f16" in kernels) is rounded


def _decode_sources(device, package, **hints: str) -> list[str]:
    arena = DryRunArena(device.capabilities)
    plan = Plan(package, arena, policy(**hints), context=CONTEXT, kv_dtype="f16")
    lowered = plan.lowered(DECODE)
    return [
        phase.record.source
        for phase in (*lowered.body, *lowered.head)
        if phase.name.startswith(("matvec", "gemv"))
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
    assert unhonoured(decisions_for(package, device.capabilities, wanted, CONTEXT, "f16")) == ()
    (line,) = unhonoured(decisions_for(package, plain_device.capabilities, wanted, CONTEXT, "f16"))
    assert "the device has no feature subgroup" in line


def _attention(value: str, *, rows: int, storage: int = 32768, binding: int = 1 << 27):
    empty = BufferSlice(None, 0, 4)
    ctx = OpContext(
        State(empty, empty),
        rows,
        Capabilities(limits={"max-compute-workgroup-storage-size": storage}),
    )
    spec = AttentionSpec(heads=8, cache=KvSpec(2, 256, 4096), scale=1.0)
    hints = policy(attentionPrefill=value, attentionDecode=value)
    choice = choose_attention(AttentionRequest(spec, ctx, binding), Preferences(hints, True))
    return choice.candidate.kernel, choice.reason


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
    assert why.unmet.obstacle in why.text
    assert _attention(value, rows=rows)[0] is AttentionKernel(value)


def test_without_a_hint_the_rows_and_limits_decide_the_kernel():
    assert _attention("auto", rows=64)[0] is AttentionKernel.TILED_LARGE
    assert _attention("auto", rows=8)[0] is AttentionKernel.TILED_SMALL
    assert _attention("auto", rows=64, storage=16384)[0] is AttentionKernel.TILED_SMALL
    assert _attention("auto", rows=64, storage=4096)[0] is AttentionKernel.STREAMING
    assert _attention("auto", rows=1)[0] is AttentionKernel.SPLIT_KV


def test_a_dry_run_makes_the_same_decisions_as_loading(device, tmp_path, rng):
    package = package_of(tmp_path, rng, layout="column")
    hints = policy(q4kMatmul="dequant_f16")
    before = device.counters.copy()
    planned = decisions_for(package, device.capabilities, hints, CONTEXT, "f16")
    work = device.counters.since(before)
    assert (work.buffer_creates, work.bytes_written) == (0, 0)
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=hints)
    assert backend.info.decisions == planned
    backend.close()


@pytest.mark.parametrize(
    ("hints", "kernels"),
    [
        ({}, ["matvec.", "matvec_rows.q8_0", "matmul_int8.q8_0"]),
        ({"q4kMatmul": "fused_q4k_int8"}, ["matvec.", "matvec_rows.q8_0", "matmul_int8.q8_0"]),
        ({"q4kMatmul": "fused_q4k"}, ["matvec.", "gemv_row.q4_k", "matmul_tiled.q4_k"]),
    ],
    ids=["auto", "int8 requested", "float requested"],
)
def test_several_rows_are_multiplied_with_column_major_weights_that_are_rounded_to_rows(
    device, tmp_path, rng, monkeypatch, hints, kernels
):
    monkeypatch.setattr(device, "info", replace(device.info, software=False))
    package = package_of(tmp_path, rng, layout="column")
    specs = (DECODE, SMALL_WINDOW, PREFILL)
    choices = decisions_for(package, device.capabilities, policy(**hints), 64, "f16", specs=specs)
    assert unhonoured(choices) == ()
    for spec, kernel in zip(specs, kernels, strict=True):
        (choice,) = [
            decision
            for decision in choices
            if (decision.step, decision.op) == (spec.name, "l0.down_proj")
        ]
        assert choice.kernel.startswith(kernel)
        assert ("rounded to rows of Q8_0" in choice.reason) is ("q8_0" in kernel)
