"""The number of phases of a layer in decode, of which each costs time on any device.

A change that makes a layer take more phases has to say so here.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import rdrr
from rdrr_device.device import Device
from rdrr_device.dry_run import DryRunArena
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.plan import Plan
from support.checkpoints import make_checkpoint
from support.tiny_models import ALL_MODELS

PHASES = {
    # The projections, attention or the delta rule, the output; gate and up; down.
    "llama": {5},
    "qwen3_5_text": {5},
    "starcoder2": {5},  # LayerNorm, and no gate
    "hunyuan_v1_dense": {5},  # norms of heads after the rotation
    "phi": {6},  # attention and the feed-forward are parallel, and one is added by itself
    # Norms of branches, with the residual after each: the next product computes both.
    "olmo2": {5},
    "gemma3_text": {5},
    "exaone4": {5},
    # Three projections with a bias leave no binding for the branch, so its sum is a phase.
    "glm4": {5, 6},
    # The feed-forward takes router, its choice, and for the routed experts two products, the input
    # of each being quantized to int8 first; the shared expert takes two products.
    "qwen3_5_moe_text": {11},
    "gpt_oss": {9},
    # Projections, storing the latent and, beside it, the queries; attention, values, output.
    "deepseek_v2": {8, 14},
    "lfm2": {5},
}
_LABEL = re.compile(r"(?:l|layer )(\d+)\b")


@pytest.mark.parametrize("family", PHASES)
def test_a_layer_takes_no_more_phases(family: str, device: Device, tmp_path: Path) -> None:
    tiny = next(model for model in ALL_MODELS if model.model_type == family)
    rng = np.random.default_rng(3)
    checkpoint = make_checkpoint(tiny, tmp_path / "checkpoint", rng, num_hidden_layers=2)
    rdrr.convert(checkpoint, tmp_path / "package", quantize="q4_k_m")
    policy = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})  # as on GPUs
    package = open_package(tmp_path / "package")
    plan = Plan(package, DryRunArena(device.capabilities), policy, context=64, kv_dtype="f16")
    labels = [_LABEL.match(phase.label) for phase in plan.lowered(DECODE).body]
    counts = Counter(label[1] for label in labels if label is not None)
    assert set(counts) == {"0", "1"}
    assert set(counts.values()) == PHASES[family]
