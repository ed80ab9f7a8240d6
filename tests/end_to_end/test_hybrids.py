"""Hybrids quantized and exported, against transformers; unquantized ones are with the others."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.comparison import (
    load_stored_weights,
    relative_error,
    scored,
    stepped,
    transformers_logits,
)
from support.tiny_models import LATEST_MODELS, STATE_SPACE_MODELS, VOCAB

TINY = {tiny.model_type: tiny for tiny in LATEST_MODELS}
TOKENS, PREFILL, CONTEXT = 88, 80, 128


def packaged(kind, rng, folder, **options):
    model = make_model(TINY[kind], rng, num_hidden_layers=2)
    save_checkpoint(model, folder / "source", dtype="float32")
    convert(folder / "source", folder / "package", **options)
    return model, open_package(folder / "package")


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["qwen3_5_text", pytest.param("lfm2", marks=pytest.mark.thorough)])
def test_a_quantized_hybrid_computes_what_its_dequantized_weights_do(
    kind, on_gpu, device, tmp_path, rng
):
    model, package = packaged(kind, rng, tmp_path, quantize="q4_k_m")
    ids = rng.integers(3, VOCAB, TOKENS).tolist()
    unquantized = transformers_logits(model, ids)
    load_stored_weights(model, package)
    reference = transformers_logits(model, ids)
    assert relative_error(reference, unquantized) > 1e-2
    backend, bound = CpuBackend(package, context=CONTEXT), 1e-4
    if on_gpu:
        exact = resolve({"run flag": {"computePrecision": "f32"}})
        options = {"kv_dtype": "f32", "device": device, "policy": exact}
        backend, bound = GpuBackend(package, context=CONTEXT, **options), 1e-3
    assert relative_error(scored(backend, ids), reference) <= bound
    single = stepped(backend, ids, PREFILL)
    assert relative_error(single, reference[PREFILL - 1 :]) <= bound
    backend.close()


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_dense_layers_beside_experts_and_their_biases_compute_the_same(
    on_gpu, device, tmp_path, rng
):
    tiny = next(one for one in STATE_SPACE_MODELS if "moe_latent_size" in dict(one.options))
    kinds = ["moe", "linear_attention", "mlp", "full_attention"]
    model = make_model(tiny, rng, mlp_bias=True, layers_block_type=kinds)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", quantize="f32")
    ids = rng.integers(3, VOCAB, 40).tolist()
    reference = transformers_logits(model, ids)
    with open_package(tmp_path / "package") as package:
        biases = [name for name in package.manifest.tensors if name.endswith("_proj.bias")]
        assert sum("mlp" in name for name in biases) == 6
        backend = CpuBackend(package, context=CONTEXT)
        if on_gpu:
            backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
        logits = scored(backend, ids)
        # Rounding may decide between two experts that are almost equally probable.
        rows = np.abs(logits - reference).max(axis=1) / np.abs(reference).max()
        assert np.quantile(rows, 0.9) <= 1e-4
        backend.close()


KINDS = [
    "qwen3_5_text",
    pytest.param("qwen3_5_moe_text", marks=pytest.mark.thorough),  # test_export_command.py has it
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "lfm3",
]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_an_exported_hybrid(kind, tmp_path, rng):
    import torch
    from transformers import AutoModelForCausalLM

    model, _ = packaged(kind, rng, tmp_path, quantize="f32")
    export(tmp_path / "package", tmp_path / "exported")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    ids = rng.integers(3, VOCAB, 24).tolist()
    assert type(loaded) is type(model)
    assert np.array_equal(transformers_logits(loaded, ids), transformers_logits(model, ids))
