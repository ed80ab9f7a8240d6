"""How the attention of a layer is lowered for the workgroups of one dispatch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rdrr
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.phases.attention.attention_decode import AttentionDecode
from rdrr_runtime.phases.context import Grid
from support.checkpoints import make_checkpoint
from support.lowered import WITH_MATRICES
from support.tiny_models import ALL_MODELS


@pytest.mark.parametrize(("grid", "kinds"), [(Grid(64, 4), 1), (None, 2)], ids=str)
def test_layers_with_and_without_a_window_share_an_output_projection_in_one_dispatch(
    tmp_path: Path, grid: Grid | None, kinds: int
) -> None:
    tiny = next(model for model in ALL_MODELS if model.model_type == "gemma3_text")
    kinds_of_layers = ["sliding_attention", "full_attention"]
    changes = {"layer_types": kinds_of_layers, "num_hidden_layers": 2, "sliding_window": 32}
    checkpoint = make_checkpoint(tiny, tmp_path / "c", np.random.default_rng(3), **changes)
    rdrr.convert(checkpoint, tmp_path / "package", quantize="q8_0")
    plan = dry_run_plan(open_package(tmp_path / "package"), WITH_MATRICES, Policy(), 512, "f16")
    phases = plan.lower(DECODE, grid=grid).body
    attention = [phase.record for phase in phases if isinstance(phase.record, AttentionDecode)]
    assert [record.window for record in attention] == [32, 0]
    outputs = [phase.record for phase in phases if phase.label.endswith("o_proj")]
    assert len({record.splits for record in attention}) == kinds
    assert len(set(outputs)) == kinds
