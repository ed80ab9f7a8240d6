"""Adapters with small limits: matrices beyond the binding size are split, the logits stay.

The limits are those of `support.devices`; `tests/end_to_end/test_default_limits.py` runs every
architecture within them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from rdrr_device.device import Device, open_device
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids
from support.comparison import relative_error, stepped
from support.devices import PLAIN, SMALL_LIMITS
from support.manifests import write_manifest
from support.packages import VOCAB, llama_manifest, write_random_package

CONTEXT, PREFILL, IDS = 32, 20, 24
EXACT, IN_INT8 = 1e-5, 3e-2
MOST_MOVED = 0.01  # fraction of a rounded cache
EXPERTS = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "normalizeWeights": False,
    "expertFormat": "mixtral",
    "expertIntermediateSize": 192,
    "sharedExpertIntermediateSize": 256,
}
SOFTCAPS = {
    "attention": {"attnLogitSoftcapping": 2.0, "slidingWindow": 9},
    "output": {"finalLogitSoftcapping": 0.5, "logitInputScale": 1},
    "layerPattern": {"type": "custom", "layerTypes": ["sliding_attention", "full_attention"]},
    "rope": {"ropeTheta": 1e6, "ropeLocalTheta": 1e4},
}


@dataclass(frozen=True)
class Family:
    """A model: dtype and layout of its matrices, and further manifest fields."""

    dtype: str
    layout: str = "row"
    head_dim: int = 64
    moe: dict[str, Any] | None = None
    inference: dict[str, Any] | None = None


FAMILIES = {
    "Q4_K": Family("Q4_K"),
    "Q4_K column-major": Family("Q4_K", "column"),
    "Q6_K": Family("Q6_K"),
    "Q8_0 column-major": Family("Q8_0", "column"),
    "F16": Family("F16"),
    "softcaps and windows": Family("Q8_0", inference=SOFTCAPS),
    "partial rotary": Family("Q5_K", inference={"rope": {"partialRotaryFactor": 0.75}}),
    "experts": Family("Q4_K", moe=EXPERTS),
    "experts in F16": Family("F16", moe=EXPERTS),
}

USUAL = {"experts"}
"""The family whose split `make test` runs, beside those without optional features; matrices of
every layout are split in tests/runtime/phases/products, and `make test-all` runs all families."""


@pytest.fixture(scope="module")
def small_device() -> Iterator[Device]:
    opened = open_device(limits=SMALL_LIMITS)
    opened.info = replace(opened.info, software=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def smallest_device() -> Iterator[Device]:
    """Open a device with small limits and without optional features."""
    opened = open_device(without=PLAIN, limits=SMALL_LIMITS)
    opened.info = replace(opened.info, software=True)
    yield opened
    opened.close()


def package_of(folder, family: Family, rng):
    manifest = llama_manifest(family.dtype, family.layout, moe=family.moe, head_dim=family.head_dim)
    write_random_package(folder, manifest, rng)
    for block, values in (family.inference or {}).items():
        manifest["inference"][block] |= values
    shards = open_package(folder).manifest.shards
    manifest["shards"] = [shard.model_dump(by_alias=True, exclude_none=True) for shard in shards]
    write_manifest(folder, manifest)
    return open_package(folder)


def run(package, device, ids, kv_dtype="f32"):
    """Return the logits, greedy ids, and the most parts that any matrix is split into."""
    *results, _ = run_with_cache(package, device, ids, kv_dtype)
    return tuple(results)


def run_with_cache(package, device, ids, kv_dtype):
    """Return the same, and the bytes of the cache that the logits were computed from."""
    backend = GpuBackend(package, context=CONTEXT, kv_dtype=kv_dtype, device=device)
    weights = backend._plan.weights
    parts = max(
        len(matrix.parts) for matrix in (*weights.matrices.values(), *weights.stacks.values())
    )
    logits = stepped(backend, ids, PREFILL)
    cache = backend._plan.cache.read(device, len(ids))
    results = logits, backend.greedy(ids[:3], 0, 5), parts, cache
    backend.close()
    return results


def moved(first, second, kv_dtype):
    """Return the fraction of the elements of two caches that were rounded to different codes.

    Sums in another order may do that to an element that lies between two codes, so the codes must
    be neighbours, unless they are so close to 0 that there are many.
    """
    kind = {"f16": np.float16, "q8_0": np.int8}[kv_dtype]
    names = [name for name in first if not name.endswith(".scales")]
    ours, theirs = (
        np.concatenate([result[name].ravel() for name in names]).view(kind).astype(np.float32)
        for result in (first, second)
    )
    step = 1.0 if kv_dtype == "q8_0" else np.maximum(2.0**-10 * np.abs(ours), 1e-6)
    assert (np.abs(ours - theirs) <= step).all()
    return (ours != theirs).mean()


def test_the_device_has_the_limits_that_were_asked_for(device, small_device):
    assert {name: small_device.limits[name] for name in SMALL_LIMITS} == SMALL_LIMITS
    assert device.max_binding > small_device.max_binding
    with pytest.raises(DeviceError, match="larger than the adapter can bind"):
        small_device.create_buffer("large", small_device.max_binding + 256)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=name, marks=() if name in USUAL else pytest.mark.thorough)
        for name, family in FAMILIES.items()
    ],
)
def test_a_model_that_is_split_has_the_same_logits(device, small_device, tmp_path, rng, family):
    package = package_of(tmp_path, family, rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    logits, greedy, whole = run(package, device, ids)
    result, taken, parts = run(package, small_device, ids)
    assert whole == 1
    assert parts > 1
    assert relative_error(result, logits) < EXACT
    assert_same_ids(taken, greedy, ids[:3], package)


@pytest.mark.thorough
@pytest.mark.cover
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("family", [FAMILIES["Q4_K"], FAMILIES["experts"]], ids=["llama", "moe"])
def test_a_model_that_is_split_has_the_same_logits_without_optional_features(
    plain_device, smallest_device, tmp_path, rng, family, kv_dtype
):
    package = package_of(tmp_path, family, rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    logits, greedy, _, cache = run_with_cache(package, plain_device, ids, kv_dtype)
    result, taken, parts, split_cache = run_with_cache(package, smallest_device, ids, kv_dtype)
    assert parts > 1
    differing = moved(cache, split_cache, kv_dtype)
    assert differing < MOST_MOVED
    bound = EXACT
    if differing:  # a few elements rounded otherwise matter less than not rounding any
        bound = relative_error(logits, run(package, plain_device, ids)[0])
    assert relative_error(result, logits) < bound
    assert taken == greedy


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Q4_K", "Q4_K column-major", "F16", "experts"])
def test_the_int8_kernels_are_split_too(device, small_device, tmp_path, rng, name):
    """Both devices round to int8, but at different points where their kernels differ."""
    package = package_of(tmp_path, FAMILIES[name], rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    results = []
    for adapter in (device, small_device):
        exact, adapter.info = adapter.info, replace(adapter.info, software=False)
        try:
            results.append(run(package, adapter, ids))
        finally:
            adapter.info = exact
    (logits, _, whole), (ours, _, parts) = results
    assert (whole, parts > 1) == (1, True)
    assert relative_error(ours, logits) < IN_INT8


def test_samplers_and_scores_run_within_small_limits(device, small_device, tmp_path, rng):
    package = package_of(tmp_path, FAMILIES["Q4_K"], rng)
    ids = rng.integers(0, VOCAB, 9).tolist()
    texts = []
    for adapter in (device, small_device):
        backend = GpuBackend(package, context=CONTEXT, device=adapter)
        backend.begin(SamplingParams(temperature=0.7, top_k=20, seed=5), ids, logprobs=3)
        sampled = backend.sample(ids, 0, 6)
        texts.append((sampled, backend.logits(ids, 0, all_rows=True)))
        backend.close()
    assert texts[0][0] == texts[1][0]
    assert relative_error(texts[1][1], texts[0][1]) < EXACT


def test_a_cache_that_cannot_be_bound_says_what_to_do(device, small_device, tmp_path, rng):
    package = package_of(tmp_path, FAMILIES["Q8_0 column-major"], rng)
    live = small_device.memory.live
    with pytest.raises(DeviceError, match=r"keys of a layer.*`context`, `kv_dtype` q8_0"):
        GpuBackend(package, context=512, kv_dtype="f32", device=small_device)
    assert small_device.memory.live == live
    GpuBackend(package, context=512, kv_dtype="f32", device=device).close()
