"""Adapters with small limits: matrices beyond the binding size are split, the logits stay.

The limits are those of `support.devices`; `tests/end_to_end/test_default_limits.py` runs every
architecture within them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rdrr_device.device import Device, open_device
from rdrr_format.errors import DeviceError
from rdrr_manifests.package import open_package
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error, stepped
from support.devices import PLAIN, SMALL_LIMITS
from support.manifests import write_manifest
from support.packages import VOCAB, llama_manifest, write_random_package

CONTEXT, PREFILL, IDS = 32, 20, 24
EXACT, IN_INT8 = 1e-5, 3e-2
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
    manifest["shards"] = [one.model_dump(by_alias=True, exclude_none=True) for one in shards]
    write_manifest(folder, manifest)
    return open_package(folder)


def run(package, device, ids, kv_dtype="f32"):
    """Return the logits, greedy ids, and the most parts that any matrix is split into."""
    backend = GpuBackend(package, context=CONTEXT, kv_dtype=kv_dtype, device=device)
    weights = backend._plan.weights
    parts = max(len(one.parts) for one in (*weights.matrices.values(), *weights.stacks.values()))
    found = stepped(backend, ids, PREFILL), backend.greedy(ids[:3], 0, 5), parts
    backend.close()
    return found


def test_the_device_has_the_limits_that_were_asked_for(device, small_device):
    assert {name: small_device.limits[name] for name in SMALL_LIMITS} == SMALL_LIMITS
    assert device.max_binding > small_device.max_binding
    with pytest.raises(DeviceError, match="larger than the adapter can bind"):
        small_device.create_buffer("large", small_device.max_binding + 256)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_model_that_is_split_has_the_same_logits(device, small_device, tmp_path, rng, family):
    package = package_of(tmp_path, family, rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    logits, greedy, whole = run(package, device, ids)
    found, taken, parts = run(package, small_device, ids)
    assert whole == 1
    assert parts > 1
    assert relative_error(found, logits) < EXACT
    assert taken == greedy


@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("family", [FAMILIES["Q4_K"], FAMILIES["experts"]], ids=["llama", "moe"])
def test_a_model_that_is_split_has_the_same_logits_without_optional_features(
    plain_device, smallest_device, tmp_path, rng, family, kv_dtype
):
    package = package_of(tmp_path, family, rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    logits, greedy, _ = run(package, plain_device, ids, kv_dtype)
    found, taken, parts = run(package, smallest_device, ids, kv_dtype)
    assert parts > 1
    assert relative_error(found, logits) < EXACT
    assert taken == greedy


@pytest.mark.parametrize("name", ["Q4_K", "Q4_K column-major", "F16", "experts"])
def test_the_int8_kernels_are_split_too(device, small_device, tmp_path, rng, name):
    """Both devices round to int8, but at different points where their kernels differ."""
    package = package_of(tmp_path, FAMILIES[name], rng)
    ids = rng.integers(0, VOCAB, IDS).tolist()
    found = []
    for one in (device, small_device):
        exact, one.info = one.info, replace(one.info, software=False)
        try:
            found.append(run(package, one, ids))
        finally:
            one.info = exact
    (logits, _, whole), (ours, _, parts) = found
    assert (whole, parts > 1) == (1, True)
    assert relative_error(ours, logits) < IN_INT8


def test_samplers_and_scores_run_within_small_limits(device, small_device, tmp_path, rng):
    package = package_of(tmp_path, FAMILIES["Q4_K"], rng)
    ids = rng.integers(0, VOCAB, 9).tolist()
    texts = []
    for one in (device, small_device):
        backend = GpuBackend(package, context=CONTEXT, device=one)
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
