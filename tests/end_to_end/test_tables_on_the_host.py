"""Inputs of each layer whose table stays on the host give the same tokens as in GPU memory."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.footprint import footprint
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.checkpoints import make_checkpoint
from support.comparison import relative_error
from support.seeds import generator_of
from support.tiny_models import ALL_MODELS

CONTEXT = 64
ON_HOST = Policy(keeps_tables_on_host=True)
TABLE = "model.embed_tokens_per_layer.weight"


@pytest.fixture(scope="module", params=[pytest.param("f32", marks=pytest.mark.thorough), "q4_k_m"])
def package(request, tmp_path_factory):
    """A Gemma 4 with inputs of each layer, in shards that are smaller than its table."""
    options = [dict(model.options) for model in ALL_MODELS]
    sizes = [option.get("hidden_size_per_layer_input") for option in options]
    tiny = next(
        model
        for model, size in zip(ALL_MODELS, sizes, strict=True)
        if size and model.model_type.startswith("gemma4")
    )
    folder = tmp_path_factory.mktemp("tables")
    checkpoint = make_checkpoint(tiny, folder / "model", generator_of(request), dtype="float32")
    convert(checkpoint, folder / "package", quantize=request.param, shard_size=2**16)
    return open_package(folder / "package")


def backends(package, device):
    backends = [
        GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, policy=policy)
        for policy in (Policy(), ON_HOST)
    ]
    assert [backend.info.waits_for_ids for backend in backends] == [False, True]
    return backends


@pytest.mark.thorough
def test_every_pass_computes_the_same_with_the_table_on_the_host(package, device, rng):
    on_gpu, on_host = backends(package, device)
    ids = rng.integers(0, 384, 30).tolist()
    reference = CpuBackend(package, context=CONTEXT)
    for backend in (on_gpu, on_host):
        assert relative_error(backend.logits(ids, 0), reference.logits(ids, 0)) < 5e-3
    whole = on_gpu.logits(ids, 0, all_rows=True)
    np.testing.assert_allclose(on_host.logits(ids, 0, all_rows=True), whole, atol=1e-4)
    assert on_host.greedy(ids, 0, 12) == on_gpu.greedy(ids, 0, 12)
    assert (
        on_host.window_picks(ids[:9], 0, last_n=4)[0]
        == (on_gpu.window_picks(ids[:9], 0, last_n=4)[0])
    )
    sampled = []
    for backend in (on_gpu, on_host):
        backend.begin(SamplingParams(temperature=1.0, seed=7), ids)
        sampled.append(backend.sample(ids, 0, 9))
    assert sampled[0] == sampled[1]
    rows = [Row(7, 0, 0), Row(300, 1, 0)]
    batches = [one.batch(2, 32).greedy(rows, 7) for one in (on_gpu, on_host)]
    assert batches[0] == batches[1]
    for one in (on_gpu, on_host):
        one.close()


def test_the_table_takes_no_gpu_memory(package, device):
    with_table, without = (
        footprint(package, device.capabilities, policy, context=CONTEXT)
        for policy in (Policy(), ON_HOST)
    )
    assert with_table.weights - without.weights >= package.tensor(TABLE).size
    before = device.memory.live
    backend = GpuBackend(package, context=CONTEXT, device=device, policy=ON_HOST)
    backend.greedy([1, 2, 3], 0, 2)
    held = device.memory.live - before
    assert backend.info.weights_bytes == pytest.approx(without.weights, rel=1e-3)
    assert without.total <= held < 1.05 * without.total + 16384
    (said,) = [decision for decision in backend.info.decisions if decision.op == TABLE]
    assert said.kernel == "on the host"
    backend.close()


@pytest.mark.thorough
def test_a_model_that_fits_only_without_its_table_is_loaded_without(package, device):
    where = package.where
    needs = [
        footprint(package, device.capabilities, policy, context=CONTEXT).peak
        for policy in (Policy(), ON_HOST)
    ]
    limit = sum(needs) // 2
    options = {"backend": "wgpu", "context": CONTEXT}
    texts = []
    for place, most in (("auto", limit), ("auto", None), ("host", None), ("gpu", None)):
        with rdrr.load(where, max_vram=most, layer_inputs=place, **options) as model:
            generation = model.generate([5, 9, 200], max_tokens=6, temperature=0.8, seed=3)
            generation.read()
            texts.append(generation.token_ids)
    assert texts[1:] == texts[:-1]
    with pytest.raises(rdrr.DeviceError, match="layer_inputs"):
        rdrr.load(where, max_vram=limit, layer_inputs="gpu", **options)
