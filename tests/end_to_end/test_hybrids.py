"""Hybrids quantized and exported, against transformers; unquantized ones are with the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_device.device import Device, open_device
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.hints import resolve
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import LATEST_MODELS, VOCAB, make_model, save_checkpoint
from support.comparison import (
    load_stored_weights,
    relative_error,
    scored,
    stepped,
    transformers_logits,
)

TINY = {tiny.model_type: tiny for tiny in LATEST_MODELS}
TOKENS, PREFILL, CONTEXT = 88, 80, 128


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = open_device()
    yield opened
    opened.close()


def packaged(kind, rng, folder, **options):
    model = make_model(TINY[kind], rng, num_hidden_layers=2)
    save_checkpoint(model, folder / "source", dtype="float32")
    convert(folder / "source", folder / "package", **options)
    return model, open_package(folder / "package")


@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm2"])
def test_a_quantized_hybrid_computes_what_its_dequantized_weights_do(kind, device, tmp_path, rng):
    model, package = packaged(kind, rng, tmp_path, quantize="q4_k_m")
    ids = rng.integers(3, VOCAB, TOKENS).tolist()
    unquantized = transformers_logits(model, ids)
    load_stored_weights(model, package)
    reference = transformers_logits(model, ids)
    assert relative_error(reference, unquantized) > 1e-2
    exact = resolve({"run flag": {"computePrecision": "f32"}})
    gpu = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=exact)
    for backend, bound in ((CpuBackend(package, context=CONTEXT), 1e-4), (gpu, 1e-3)):
        assert relative_error(scored(backend, ids), reference) <= bound
        single = stepped(backend, ids, PREFILL)
        assert relative_error(single, reference[PREFILL - 1 :]) <= bound
    gpu.close()


KINDS = ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm2_moe"]


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
