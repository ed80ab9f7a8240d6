"""Whole models with experts: the GPU's logits are those of torch on the same bytes."""

from __future__ import annotations

import pytest
from rdrr_runtime.compile.choice.decision import unhonoured
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.exec.plan import decisions_for
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, scored, stepped
from support.packages import VOCAB, llama_manifest, write_random_package

CONTEXT, EXACT, IN_INT8 = 96, 1e-4, 5e-2
MOE = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "expertFormat": "mixtral",
    "expertIntermediateSize": 192,
}
INT8_EXPERTS = {
    ("decode", "l1.experts"): "matvec_rows.experts.sum",
    ("prefill", "l1.experts.down"): "matmul_int8.experts",
}
SHARED = {**MOE, "normalizeWeights": False, "sharedExpertIntermediateSize": 256}


def package_of(tmp_path, rng, dtype="Q4_K", layout="row", moe=MOE):
    manifest = llama_manifest(dtype, layout, moe=moe)
    return write_random_package(tmp_path / "package", manifest, rng)


def logits_error(backend, package, rng) -> float:
    """Return the relative error of the logits after a prompt and after each single token."""
    ids = rng.integers(0, VOCAB, 23).tolist()
    reference = scored(CpuBackend(package, context=CONTEXT), ids)
    return relative_error(stepped(backend, ids, 20), reference[19:])


def kernels_of(backend) -> dict[tuple[str, str], str]:
    """Return the kernel of each op of each kind of pass."""
    return {(decision.step, decision.op): decision.kernel for decision in backend.info.decisions}


@pytest.mark.parametrize(
    ("dtype", "moe"),
    [
        ("Q4_K", SHARED),
        pytest.param("Q6_K", MOE, marks=pytest.mark.thorough),
        pytest.param("F16", SHARED, marks=pytest.mark.thorough),
    ],
    ids=["Q4_K shared", "Q6_K", "F16 shared"],
)
def test_logits_are_those_of_torch(device, tmp_path, rng, dtype, moe):
    package = package_of(tmp_path, rng, dtype, moe=moe)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    assert logits_error(backend, package, rng) < EXACT
    kernels = kernels_of(backend)
    assert kernels["decode", "l1.router"] == kernels["prefill", "l1.router"] == "router_topk"
    assert kernels["decode", "l1.experts"].startswith("gemv_row.experts.sum")
    assert kernels["prefill", "l1.experts.down"].startswith("matmul_tiled.experts")
    backend.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "gated", "kernels"),
    [
        *((dtype, True, INT8_EXPERTS) for dtype in ("Q4_K", "Q8_0")),
        ("Q4_K", False, {("decode", "l1.experts.act"): "matvec_rows.experts.each"}),
    ],
    ids=["Q4_K", "Q8_0", "without gates"],
)
def test_experts_in_int8_are_near_torch(device, tmp_path, rng, dtype, gated, kernels):
    # Every token uses all experts, so that rounding cannot change which ones are chosen.
    manifest = llama_manifest(dtype, moe={**SHARED, "numExpertsPerToken": 6}, gated=gated)
    package = write_random_package(tmp_path / "package", manifest, rng)
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy)
    assert 1e-5 < logits_error(backend, package, rng) < IN_INT8
    chosen = kernels_of(backend)
    assert all(chosen[at].startswith(name) for at, name in kernels.items())
    backend.close()


@pytest.mark.cover
@pytest.mark.parametrize("latent", [None, 192], ids=["of the hidden state", "of a latent"])
@pytest.mark.parametrize("dtype", ["Q4_K", "F16"])
def test_experts_without_gates_are_those_of_torch(device, tmp_path, rng, dtype, latent):
    moe = {**SHARED, "expertLatentSize": latent}
    manifest = llama_manifest(dtype, moe=moe, gated=False)
    package = write_random_package(tmp_path / "package", manifest, rng)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    assert logits_error(backend, package, rng) < EXACT
    backend.close()


@pytest.mark.thorough
def test_column_major_experts_run_as_they_are_stored(device, tmp_path, rng):
    package = package_of(tmp_path, rng, layout="column", moe=SHARED)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    assert not any("expanded" in decision.reason for decision in backend.info.decisions)
    assert logits_error(backend, package, rng) < EXACT
    backend.close()


@pytest.mark.thorough  # the kernels of experts run without them, too
def test_a_device_without_optional_features_gives_the_same_logits(plain_device, tmp_path, rng):
    package = package_of(tmp_path, rng, moe=SHARED)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=plain_device)
    assert logits_error(backend, package, rng) < EXACT
    backend.close()


def test_a_token_reads_back_no_routing(device, tmp_path, rng):
    package = package_of(tmp_path, rng, moe=SHARED)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    backend.greedy(rng.integers(0, VOCAB, 9).tolist(), 0, 3)
    ids = backend.greedy([5], 11, 2)
    before = backend.device.counters.copy()
    backend.greedy(ids[-1:], 13, 4)
    work = backend.device.counters.since(before)
    assert (work.bytes_read, work.submits) == (4 * 4, 4 + 1)
    backend.close()


def test_experts_in_a_form_that_no_kernel_reads_are_expanded_and_reported(device, tmp_path, rng):
    package = package_of(tmp_path, rng, layout="flat")
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    notes = {
        decision.op: decision.reason
        for decision in backend.info.decisions
        if decision.step == "load"
    }
    name = "model.layers.1.mlp.experts.0.gate_proj.weight and 5 more"
    obstacle = "kernels read experts only in row or column layout"
    assert notes[name] == f"Q4_K expanded to F32 at load, as {obstacle}"
    assert logits_error(backend, package, rng) < EXACT
    backend.close()


def test_experts_of_different_types_are_expanded_to_one(device, tmp_path, rng):
    manifest = llama_manifest("Q8_0", moe=MOE)
    entry = manifest["tensors"]["model.layers.1.mlp.experts.3.up_proj.weight"]
    entry |= {"dtype": "Q5_0", "size": entry["size"] // 34 * 22}
    package = write_random_package(tmp_path / "package", manifest, rng)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    notes = [
        decision for decision in backend.info.decisions if "different types" in decision.reason
    ]
    assert [note.op for note in notes if note.step == "load"] == [
        "model.layers.1.mlp.experts.0.up_proj.weight and 5 more"
    ]
    assert logits_error(backend, package, rng) < EXACT
    backend.close()


@pytest.mark.parametrize(
    ("dtype", "layout", "hints", "message"),
    [
        ("Q4_K", "column", {"q4kMatmul": "fused_q4k_int8"}, "a Q4_K matrix is column-major"),
        ("F16", "row", {"f16Matmul": "tiled"}, "tiles of experts need 32 token rows"),
    ],
)
def test_a_hint_that_experts_cannot_honour_is_reported(
    device, tmp_path, rng, dtype, layout, hints, message
):
    package = package_of(tmp_path, rng, dtype, layout)
    policy = resolve({"run flag": hints})
    (line,) = unhonoured(decisions_for(package, device.capabilities, policy, CONTEXT, "f16"))
    assert message in line
    assert unhonoured(decisions_for(package, device.capabilities, Policy(), CONTEXT, "f16")) == ()
