"""Attention of batches that leaves its result as the output projection reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import batch_of
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.phases.phase import Phase
from support.lowered import WITH_MATRICES
from support.packages import LAYERS, llama_manifest, write_random_package


def phases_of_batch(folder: Path, context: int, rows: int, kv_dtype: str) -> list[Phase]:
    package = write_random_package(folder, llama_manifest("Q4_K"), np.random.default_rng(0))
    plan = dry_run_plan(package, WITH_MATRICES, Policy(), context, kv_dtype)
    return list(plan.lowered(batch_of(rows)).body)


@pytest.mark.parametrize(
    ("context", "rows", "kv_dtype", "rounded"),
    [
        (96, 8, "f16", "int8"),
        (96, 32, "f16", "f16"),
        (96, 32, "f32", ""),  # values that f16 may not hold
        (256, 8, "f16", ""),  # several splits
    ],
)
def test_a_phase_combines_attention_only_where_its_keys_are_split(
    tmp_path, context, rows, kv_dtype, rounded
) -> None:
    phases = phases_of_batch(tmp_path / "package", context, rows, kv_dtype)
    attention = [phase for phase in phases if phase.record.shader == "attention/attention_decode"]
    assert [phase.record.rounded for phase in attention] == [rounded] * LAYERS
    combining = [phase for phase in phases if getattr(phase.record, "input", "") == "combine"]
    assert len(combining) == (0 if rounded else LAYERS)
    for phase in attention:
        behind = phases[phases.index(phase) + 1]
        assert phase.buffers["y" if rounded else "sums"] == behind.buffers["x"]
