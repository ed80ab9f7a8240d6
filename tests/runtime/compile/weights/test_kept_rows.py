"""Matrices that are kept as rows are rounded once, and give what rounding in each pass gives."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import rdrr
from rdrr_device.dry_run import DryRunArena
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import Policy, resolve
from rdrr_runtime.compile.pass_spec import PREFILL, batch_of
from rdrr_runtime.compile.weights.kept_rows import KeptRows
from rdrr_runtime.exec.footprint import footprint
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from support.devices import SMALL_LIMITS
from support.lowered import WITH_MATRICES
from support.packages import CONTEXT, SMALL, VOCAB, llama_manifest, write_random_package

INT8 = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})
KEPT = replace(INT8, keeps_rounded=True)
BATCH = batch_of(4)


@pytest.fixture
def package(tmp_path, rng):
    return write_random_package(tmp_path, llama_manifest("Q4_K", "column", layers=2), rng)


def _kernels(package, policy, capabilities, spec):
    arena = DryRunArena(capabilities)
    plan = Plan(package, arena, policy, context=CONTEXT, kv_dtype="f16")
    return [phase.record.name for lowered in plan.passes([spec]) for phase in lowered.phases]


def _results(package, device, policy, ids):
    """Return the logits of a prompt, and ids of a batch."""
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=policy)
    with closing(backend):
        logits = backend.logits(ids, 0)
        sequences = backend.batch(BATCH.rows, 32)
        sequences.fill([Row(5 + slot, at, slot) for at in range(BATCH.rows) for slot in range(6)])
        return logits, sequences.greedy([Row(9 + at, at, 6) for at in range(BATCH.rows)], 4)


def test_prompts_and_batches_are_those_of_weights_that_each_pass_rounds(package, device, rng):
    ids = rng.integers(0, VOCAB, 20).tolist()
    logits, batch = _results(package, device, INT8, ids)
    kept_logits, kept_batch = _results(package, device, KEPT, ids)
    np.testing.assert_array_equal(kept_logits, logits)
    assert kept_batch == batch


@pytest.mark.parametrize("spec", [PREFILL, BATCH], ids=["prompt", "batch"])
def test_no_pass_rounds_what_is_kept(package, device, spec):
    kernels = _kernels(package, INT8, device.capabilities, spec)
    others = [name for name in kernels if not name.startswith("requantize")]
    assert others != kernels
    assert _kernels(package, KEPT, device.capabilities, spec) == others


def test_a_matrix_is_rounded_once_and_behind_the_upload(bench, package, monkeypatch):
    counts = []
    monkeypatch.setattr(bench.arena, "run", lambda *dispatches: counts.append(len(dispatches)))
    plan = Plan(package, bench.arena, Policy(), context=CONTEXT, kv_dtype="f16", upload=False)
    rows = KeptRows(bench.arena)
    first, second, *_ = plan.weights.matrices.values()
    rounded = rows.of(second, "second")
    assert rows.of(second, "again") is rounded
    assert (rounded.phases, counts) == ((), [])
    assert [kernel.label for kernel in rows.kernels] == ["requantize.q4_k.column"]
    rows.fill()
    assert not rows.kernels
    assert counts == [1]
    assert rows.of(second, "again") is rounded
    assert counts == [1]
    assert rows.of(first, "first") is not rounded
    assert counts == [1, 1]  # at once, as the weights are there
    assert rows.size == rounded.weight.size + rows.of(first, "first").weight.size


def test_rows_that_find_no_room_can_be_asked_for_again(bench, package, monkeypatch):
    plan = Plan(package, bench.arena, Policy(), context=CONTEXT, kv_dtype="f16", upload=False)
    rows, (first, *_) = KeptRows(bench.arena), plan.weights.matrices.values()
    memory = bench.device.memory
    monkeypatch.setattr(memory, "limit", memory.live)
    with pytest.raises(rdrr.DeviceError, match=r"`max_vram` .*; use `rounded_weights` shared"):
        rows.of(first, "first")
    assert (rows.size, rows.kernels) == (0, ())
    monkeypatch.setattr(memory, "limit", None)
    assert rows.of(first, "first").weight.size == rows.size > 0


def test_small_batches_are_in_int8_beside_matrices_of_subgroups_where_rows_are_kept(package):
    """These multiply column-major blocks of small batches faster than int8 with its rounding."""
    eight = batch_of(8)
    kernels = {
        kept: _kernels(package, Policy(keeps_rounded=kept), WITH_MATRICES, eight)
        for kept in (False, True)
    }
    assert any(name.startswith("matmul_subgroup") for name in kernels[False])
    assert not any(name.startswith("matmul_subgroup") for name in kernels[True])
    assert any(name.startswith("matvec_rows") for name in kernels[True])


def test_matrices_whose_rows_are_not_bound_at_once_share_no_launch(package, device):
    """The blocks of gate and up fit a binding each; their rows of Q8_0 take twice as much."""
    small = replace(device.capabilities, limits=SMALL_LIMITS)
    joined = "matvec_rows.q8_0,q8_0.gate.int8.halves"
    assert joined in _kernels(package, KEPT, device.capabilities, BATCH)
    kernels = _kernels(package, KEPT, small, BATCH)
    assert joined not in kernels
    # Two layers with gate and up, each in two parts.
    assert kernels.count("matvec_rows.q8_0.store.int8.halves") == 2 * 2 * 2


def test_the_memory_of_kept_rows_counts_as_that_of_weights(package, device):
    shared, rounded = (
        footprint(package, device.capabilities, policy, context=CONTEXT) for policy in (INT8, KEPT)
    )
    assert rounded.weights > 2 * shared.weights
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=KEPT)
    with closing(backend):
        assert backend.info.weights_bytes == rounded.weights
    options = {"backend": "wgpu", "context": CONTEXT, "max_vram": shared.peak + 4096}
    hints = {"q4kMatmul": "fused_q4k_int8"}
    with rdrr.load(package.where, kernel_hints=hints, **options):
        pass
    with pytest.raises(rdrr.DeviceError, match="`rounded_weights` shared"):
        rdrr.load(package.where, kernel_hints=hints, rounded_weights="kept", **options)


def test_nobody_is_advised_to_share_rows_that_a_package_does_not_have(tmp_path, rng):
    package = write_random_package(tmp_path, llama_manifest(**SMALL), rng)
    with pytest.raises(rdrr.DeviceError, match="`max_vram`") as caught:
        rdrr.load(package.where, backend="wgpu", rounded_weights="kept", max_vram=4096)
    assert "rounded_weights" not in str(caught.value)


def test_what_only_a_batch_needs_counts_as_weights_from_then_on(tmp_path, device, rng):
    """A server subtracts the memory of its models from what it may take, see `rdrr.serve.pool`."""
    package = write_random_package(tmp_path, llama_manifest("Q8_0", **SMALL), rng)
    policy = replace(resolve({"run flag": {"f16Matmul": "int8"}}), keeps_rounded=True)
    with closing(GpuBackend(package, context=32, device=device, policy=policy)) as backend:
        loaded = backend.info.weights_bytes
        backend.batch(12, 32).greedy([Row(5, at, 0) for at in range(12)], 1)
        head = VOCAB * SMALL["hidden"] * 36 // 32  # the scales are f32 in memory
        assert backend.info.weights_bytes == loaded + head
