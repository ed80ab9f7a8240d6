"""Layers as architectures vary them: the GPU's logits are those of torch, fused or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.comparison import relative_error, scored, stepped
from support.manifests import write_manifest
from support.packages import LAYERS, SMALL, VOCAB, llama_manifest, write_random_package

CONTEXT, EXACT = 96, 1e-4
PREFILL, IDS = 20, 24


@dataclass(frozen=True)
class Variant:
    """A model's head dimension, and the manifest blocks that describe its layers."""

    head_dim: int
    blocks: dict[str, dict[str, Any]]


def factors(head_dim: int, first: float) -> list[float]:
    return [first + index / head_dim for index in range(head_dim // 2)]


VARIANTS = {
    "a layer without rope": Variant(80, {"rope": {"unrotatedLayers": [1]}}),
    "no layer with rope": Variant(64, {"rope": {"unrotatedLayers": [0, 1]}}),
    "partial rotary": Variant(96, {"rope": {"partialRotaryFactor": 0.75}}),
    "partial interleaved rotary": Variant(
        64, {"rope": {"partialRotaryFactor": 0.5, "ropeInterleaved": True}}
    ),
    "queries scaled by position": Variant(
        64, {"attention": {"temperatureScale": 0.5, "temperatureLength": 7}}
    ),
    "layer norm, parallel": Variant(
        64,
        {
            "normalization": {"layerNorm": True},
            "layerPattern": {"parallelResidual": True},
            "ffn": {"activation": "gelu_erf"},
        },
    ),
    "layer norm, no gate": Variant(
        80,
        {
            "normalization": {"layerNorm": True, "rmsNormWeightOffset": True},
            "ffn": {"gatedActivation": False, "activation": "relu2"},
        },
    ),
    "longrope": Variant(
        128,
        {
            "rope": {
                "ropeScalingType": "longrope",
                "ropeScalingFactor": 4.0,
                "longropeShortFactor": factors(128, 1.0),
                "longropeLongFactor": factors(128, 3.0),
                "longropeOriginalMaxPos": 32,
            }
        },
    ),
    "yarn with sections": Variant(
        64,
        {
            "rope": {
                "ropeScalingType": "yarn",
                "ropeScalingFactor": 4.0,
                "yarnOriginalMaxPos": 32,
                "mropeSection": [12, 10, 10],
            }
        },
    ),
    "softcaps and a window": Variant(
        256,
        {
            "attention": {
                "queryPreAttnScalar": 100,
                "attnLogitSoftcapping": 2.0,
                "slidingWindow": 9,
            },
            "output": {"finalLogitSoftcapping": 0.05, "logitInputScale": 1},
            "layerPattern": {
                "type": "custom",
                "layerTypes": ["sliding_attention", "full_attention"],
            },
            "rope": {"ropeTheta": 1e6, "ropeLocalTheta": 1e4},
        },
    ),
}


USUAL = {
    "a layer without rope",
    "layer norm, parallel",
    "longrope",
    "yarn with sections",
    "softcaps and a window",
}
"""Variants that `make test` runs. It runs every op and every kernel of the others, too, and their
models on the CPU."""


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=name, marks=() if name in USUAL else pytest.mark.thorough)
        for name, variant in VARIANTS.items()
    ],
)
def test_logits_are_those_of_torch(device, tmp_path, rng, variant):
    manifest = llama_manifest("Q8_0", head_dim=variant.head_dim, **{**SMALL, "layers": 2})
    package = write_random_package(tmp_path / "package", manifest, rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    plain = scored(CpuBackend(package, context=CONTEXT), ids)[PREFILL - 1 :]
    for block, values in variant.blocks.items():
        manifest["inference"][block] |= values
    write_manifest(tmp_path / "package", manifest)
    package = open_package(tmp_path / "package")
    reference = scored(CpuBackend(package, context=CONTEXT), ids)[PREFILL - 1 :]
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    ours = stepped(backend, ids, PREFILL)
    kernels = {
        decision.op: decision.kernel
        for decision in backend.info.decisions
        if decision.step == "decode"
    }
    backend.close()
    assert relative_error(ours, reference) < EXACT
    assert relative_error(plain, reference) > 10 * EXACT  # the control: the blocks change the model
    fused = {kernels.get(f"layer {layer} attention") for layer in range(LAYERS)}
    assert fused == {"attention_decode.f32"}
