"""Prompts on a device whose subgroups multiply matrices: products in f16, logits as ever.

The device here states a shape that it does not have, so each thread multiplies elements.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.capabilities import DEFAULT_LIMITS, Capabilities, MatrixShape
from rdrr_device.device import Device
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.pass_spec import (
    PREFILL,
    PREFILLS,
    SMALL_WINDOW,
    WINDOW,
    PassSpec,
    batch_of,
)
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, rounding_backend
from support.lowered import MATRIX_SHAPES, WITH_MATRICES
from support.packages import CONTEXT, VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

ROWS = 40


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrices")
    return write_random_package(folder, llama_manifest(), generator_of(request))


@pytest.fixture
def with_matrices(monkeypatch):
    stated = Device.capabilities.fget
    monkeypatch.setattr(
        Device, "capabilities", property(lambda self: replace(stated(self), matrices=MATRIX_SHAPES))
    )


@pytest.mark.usefixtures("with_matrices")
def test_a_prompt_is_multiplied_in_f16_and_its_logits_stay(device, tmp_path, rng):
    package = write_random_package(tmp_path, llama_manifest(layers=1), rng)
    ids = rng.integers(0, VOCAB, ROWS).tolist()
    with closing(GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)) as backend:
        kernels = {decision.kernel for decision in backend._plan.decisions()}
        got = backend.logits(ids, 0)
    assert any(kernel.startswith("matmul_subgroup") for kernel in kernels)
    exact = CpuBackend(package, context=CONTEXT).logits(ids, 0)
    halves = rounding_backend(package, CONTEXT, lambda rows: rows.astype(np.float16))
    # Some random models enlarge what their inputs lose; weights and attention are rounded, too.
    by_rounding = relative_error(halves.logits(ids, 0), exact)
    assert relative_error(got, exact) < 1e-3 + 2 * by_rounding


def product_kernels(
    package, capabilities: Capabilities, spec: PassSpec = PREFILL, **hints: str
) -> set[str]:
    """Return the kernels of the first layer's products of a pass, planned without a device."""
    plan = dry_run_plan(package, capabilities, resolve({"run flag": hints}), CONTEXT, "f16")
    products = ("q_proj", "o_proj", "gate_proj", "down_proj", "layer 0 qkv")
    return {
        decision.kernel.partition(".")[0]
        for decision in plan.decisions((spec,))
        if decision.op.startswith(("l0.", "layer 0")) and decision.op.endswith(products)
    }


def test_the_shapes_of_a_device_decide_and_hints_keep_other_arithmetic(package):
    def kernels(**changed: object) -> set[str]:
        return product_kernels(package, replace(WITH_MATRICES, **changed))

    matrices, tiles = {"matmul_subgroup"}, {"matmul_int8"}
    assert kernels() == matrices
    assert kernels(matrices=()) == tiles
    assert kernels(matrices=(MatrixShape(16, 16, 16, "f16", "f16"),)) == tiles
    assert kernels(subgroup_sizes=(8, 32)) == tiles
    assert kernels(limits=DEFAULT_LIMITS) == tiles  # 16 KiB of workgroup memory
    assert product_kernels(package, WITH_MATRICES, q4kMatmul="fused_q4k_int8") == tiles
    assert product_kernels(package, WITH_MATRICES, computePrecision="f32") == {"matmul_tiled"}


def test_few_rows_are_on_matrices_where_weights_have_16_bits(package, tmp_path, rng):
    short = PREFILLS[0]
    halves = write_random_package(tmp_path / "halves", llama_manifest("F16"), rng)
    assert product_kernels(halves, WITH_MATRICES, short) == {"matmul_subgroup"}
    without = replace(WITH_MATRICES, matrices=())
    assert [(spec.rows, *product_kernels(halves, without, spec)) for spec in PREFILLS[:3]] == [
        (32, "gemv_row"),
        (128, "gemv_row"),
        (512, "matmul_tiled"),
    ]
    assert product_kernels(halves, WITH_MATRICES, SMALL_WINDOW) == {"gemv_row"}
    assert "matmul_subgroup" not in product_kernels(package, WITH_MATRICES, short)


def test_batches_of_8_and_prompts_of_17_are_on_matrices_where_blocks_are_column_major(
    package, tmp_path, rng
):
    columns = write_random_package(tmp_path / "columns", llama_manifest(layout="column"), rng)
    many, few = batch_of(8), batch_of(4)
    for spec in (many, batch_of(32), PREFILLS[0]):
        assert product_kernels(columns, WITH_MATRICES, spec) == {"matmul_subgroup"}
    others = [
        product_kernels(columns, WITH_MATRICES, few),
        product_kernels(columns, WITH_MATRICES, many, q4kMatmul="fused_q4k_int8"),
        product_kernels(columns, replace(WITH_MATRICES, matrices=()), many),
        product_kernels(columns, WITH_MATRICES, SMALL_WINDOW),
        product_kernels(package, WITH_MATRICES, many),
    ]
    assert all("matmul_subgroup" not in kernels for kernels in others)
    assert others[0] == others[1] == others[2] == others[3]


def labels(package, spec: PassSpec) -> list[tuple[str, str]]:
    """Return the kernel and the op of each phase of a pass where subgroups multiply matrices."""
    plan = dry_run_plan(package, WITH_MATRICES, resolve({}), CONTEXT, "f16")
    return [
        (decision.kernel.partition(".")[0], decision.op) for decision in plan.decisions((spec,))
    ]


def test_gate_and_up_and_keys_and_values_share_a_launch_on_matrices(package):
    joined = ("matmul_subgroup", "l0.gate_proj+up_proj")
    assert joined in labels(package, batch_of(32))
    assert joined in labels(package, PREFILL)
    assert ("matmul_subgroup", "l0.k_proj+v_proj") in labels(package, PREFILL)


def test_splits_are_added_by_the_norm_that_reads_the_sum_and_by_a_phase_before_the_head(
    tmp_path, rng
):
    columns = write_random_package(tmp_path / "columns", llama_manifest(layout="column"), rng)
    lowered = dry_run_plan(columns, WITH_MATRICES, resolve({}), CONTEXT, "f16").lowered(batch_of(8))
    halves = [phase for phase in lowered.phases if phase.record.shader == "products/half_rows"]
    adding = [phase.label for phase in halves if phase.record.sums]
    assert adding == ["l1.attn_in.f16"]  # the output projection has too few inputs for splits
    sums = [phase.label for phase in lowered.phases if phase.record.shader.endswith("sum_splits")]
    assert sums[-1] == lowered.body[-1].label


def test_32_sequences_are_on_matrices_where_blocks_are_row_major(package):
    assert product_kernels(package, WITH_MATRICES, batch_of(32)) == {"matmul_subgroup"}
    assert product_kernels(package, WITH_MATRICES, batch_of(16)) == {"matvec_rows"}
    assert "matmul_subgroup" not in product_kernels(package, WITH_MATRICES, WINDOW)


def test_a_batch_of_columns_has_the_attention_of_decode_passes(tmp_path, rng):
    columns = write_random_package(tmp_path / "columns", llama_manifest(layout="column"), rng)
    plan = dry_run_plan(columns, WITH_MATRICES, resolve({}), CONTEXT, "f16")

    def kernels(spec: PassSpec) -> set[str]:
        return {decision.kernel.partition(".")[0] for decision in plan.decisions((spec,))}

    batch, prompt = kernels(batch_of(8)), kernels(PREFILLS[0])
    assert {"attention_decode", "half_rows", "matmul_subgroup"} <= batch
    assert "norm_rope_store" not in batch
    assert "norm_rope_store" in prompt
