"""gpt-oss as it is published: its experts in MXFP4 are kept, and compute what they stand for."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from rdrr_manifests.package import open_package, validate
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_model, save_checkpoint
from support.comparison import relative_error, scored, stepped, transformers_logits
from support.mxfp4_checkpoints import pack_experts
from support.routes import decided_ids
from support.tiny_models import MORE_MODELS

GPT_OSS = next(tiny for tiny in MORE_MODELS if tiny.model_type == "gpt_oss")
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
REST = ("self_attn.*weight", "embed_tokens", "lm_head")
"""Patterns of the matrices that are not those of experts."""

CONTEXT, PREFILL = 128, 90


@pytest.fixture
def published(tmp_path, rng):
    """Return a checkpoint in the published form, and its model with the same weights."""
    model = make_model(GPT_OSS, rng, num_hidden_layers=2, swiglu_limit=7.0)
    folder = save_checkpoint(model, tmp_path / "source", dtype="float32")
    pack_experts(folder, model)
    return folder, model


def kinds_of(folder: Path) -> set[str]:
    tensors = open_package(folder).manifest.tensors.values()
    return {tensor.dtype for tensor in tensors if tensor.role == "expert"}


# `make test` has kernels of MXFP4 by themselves.
EXACT = pytest.param({"computePrecision": "f32"}, 1e-4, id="exact", marks=pytest.mark.thorough)
# By default, activations are quantized to int8 too.
USUAL = pytest.param({}, 0.05, id="usual", marks=pytest.mark.thorough)


@pytest.mark.parametrize(("hints", "tolerance"), [pytest.param(None, None, id="cpu"), EXACT, USUAL])
def test_the_blocks_are_kept_and_compute_the_same(tmp_path, rng, published, hints, tolerance):
    folder, model = published
    result = convert(folder, tmp_path / "out", tensor_types=dict.fromkeys(REST, "F32"))
    assert validate(tmp_path / "out", deep=True).faults == ()
    assert kinds_of(tmp_path / "out") == {"MXFP4"}
    experts = [tensor for tensor in result.tensors if tensor.dtype == "MXFP4"]
    assert len(experts) == 2 * 6 * len(PROJECTIONS)
    assert all(expert.relative_rmse == 0.0 and "copied" in expert.why for expert in experts)
    package = open_package(tmp_path / "out")
    ids = decided_ids(package, rng, PREFILL + 6)
    reference = transformers_logits(model, ids)
    cpu = CpuBackend(package, context=CONTEXT)
    assert relative_error(scored(cpu, ids), reference) < 1e-4
    if hints is None:
        return
    policy = resolve({"run flag": hints})
    gpu = GpuBackend(package, context=CONTEXT, kv_dtype="f32", policy=policy)
    assert relative_error(scored(gpu, ids), reference) < tolerance
    assert relative_error(stepped(gpu, ids, PREFILL), reference[PREFILL - 1 :]) < tolerance
    gpu.close()


def test_a_given_quantization_decides(tmp_path, published):
    folder, _ = published
    convert(folder, tmp_path / "out", quantize="q8_0")
    assert kinds_of(tmp_path / "out") == {"Q8_0"}


def test_a_gguf_with_the_same_blocks_gives_the_same_package(tmp_path, published):
    folder, _ = published
    convert(folder, tmp_path / "package", tensor_types=dict.fromkeys(REST, "F16"))
    export(tmp_path / "package", tmp_path / "m.gguf", to="gguf", lossless=True)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    gate = stored["blk.1.ffn_gate_exps.weight"]
    assert gate.tensor_type is gguf.GGMLQuantizationType.MXFP4
    assert {"blk.0.attn_sinks.weight", "blk.0.ffn_down_exps.bias"} <= set(stored)
    convert(tmp_path / "m.gguf", tmp_path / "again")
    with open_package(tmp_path / "package") as package, open_package(tmp_path / "again") as other:
        assert package.graph == other.graph
        for name in package.manifest.tensors:
            assert bytes(package.read(name)) == bytes(other.read(name)), name
        values = gguf.quants.dequantize(gate.data, gate.tensor_type)
        name = "model.layers.1.mlp.experts.4.gate_proj.weight"
        np.testing.assert_array_equal(values[4], package.dequantize(name))


def test_blocks_without_their_scales_are_refused(published):
    folder, _ = published
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    for scales in (None, tensors[name][:, :, :-1].copy()):
        broken = {key: value for key, value in tensors.items() if key != name}
        save_file(broken | ({} if scales is None else {name: scales}), folder / "model.safetensors")
        with pytest.raises(SourceError, match="do not belong together"):
            open_source(folder)
