"""The GPU backend: work per token, rewinding, optional features, packages of other writers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rdrr_format.errors import UsageError
from rdrr_manifests.package import open_package
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error, scored, stepped
from support.masks import packed
from support.packages import CONTEXT, VOCAB, llama_manifest, write_random_package

SAME, EXACT = 1e-5, 1e-3
FOREIGN = Path(__file__).parents[1] / "data" / "manifests" / "gemma-3-270m-it-q4k-ehf16-af32.json"


class LogitsOnly:
    """A backend that returns logits only, so that tokens are sampled on the host."""

    def __init__(self, backend: GpuBackend) -> None:
        self.info, self.logits, self.greedy = backend.info, backend.logits, backend.greedy


def prompt(rng, size: int) -> list[int]:
    return rng.integers(0, VOCAB, size).tolist()


def test_a_token_creates_no_gpu_objects_and_is_one_submit(backend, rng):
    ids = prompt(rng, 9)
    out = backend.greedy(ids, 0, 1)
    out = backend.greedy(out, 9, 1)
    before = backend.device.counters.copy()
    backend.greedy(out, 10, 8)
    work = backend.device.counters.since(before)
    created = (work.buffer_creates, work.bind_group_creates, work.pipeline_creates)
    assert created == (0, 0, 0)
    assert work.bytes_written == 0  # the GPU sets token and position by itself
    assert work.bytes_read == 4 * 8
    assert work.submits == 8 + 1  # the last one reads the ids back
    assert work.maps == 1


def test_reading_back_every_token_stays_within_the_byte_budget(backend, rng):
    ids = prompt(rng, 9)
    out = backend.greedy(backend.greedy(ids, 0, 1), 9, 1)
    for base in range(10, 14):
        before = backend.device.counters.copy()
        out = backend.greedy(out, base, 1)
        work = backend.device.counters.since(before)
        assert work.bytes_read <= 16
        assert work.bytes_written <= 256
        assert work.submits == 2
        assert work.buffer_creates + work.bind_group_creates + work.pipeline_creates == 0
    elsewhere = backend.device.counters.copy()
    backend.greedy([5], 3, 1)  # a token that the host has to send
    assert 0 < backend.device.counters.since(elsewhere).bytes_written <= 256


def test_sampling_creates_writes_and_reads_no_more_than_greedy(backend, rng):
    ids = prompt(rng, 9)
    options = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, repeat_penalty=1.1, seed=4)
    backend.begin(options, ids)
    out = backend.sample(backend.sample(ids, 0, 1), 9, 1)
    before = backend.device.counters.copy()
    out = backend.sample(out, 10, 8)
    work = backend.device.counters.since(before)
    assert work.buffer_creates + work.bind_group_creates + work.pipeline_creates == 0
    assert (work.bytes_written, work.bytes_read) == (0, 4 * 8)
    assert (work.submits, work.maps) == (8 + 1, 1)
    backend.begin(options, ids)  # another sequence with the same options
    assert backend.device.counters.since(before).bytes_written < 256
    assert backend.device.counters.since(before).bind_group_creates == 0


def test_the_device_samples_the_same_ids_as_the_host(backend, rng):
    ids = prompt(rng, 12)
    options = SamplingParams(
        temperature=1.2, top_k=50, top_p=0.95, presence_penalty=0.5, seed=int(rng.integers(2**40))
    )
    results = []
    for logprobs in (Logprobs(3), Logprobs(3)):
        engine = Engine(backend if not results else LogitsOnly(backend), [], VOCAB)
        runs = engine.generate(ids, max_tokens=20, sampling=options, interval=8, logprobs=logprobs)
        results.append(([id_ for run in runs for id_ in run], logprobs.tokens))
    (sampled, ours), (expected, theirs) = results
    assert sampled == expected
    assert len(set(sampled)) > 5
    assert [token.token_id for token in ours] == sampled
    for token, other in zip(ours, theirs, strict=True):
        assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [top for top, _ in token.top] == [top for top, _ in other.top]
        assert [value for _, value in token.top] == pytest.approx(
            [value for _, value in other.top], abs=1e-4
        )


class EveryThird:
    """A constraint that allows ids whose remainder by 3 is 0, 1, 2, 0, ...; complete after nine."""

    def __init__(self) -> None:
        self.rest, self.left = 0, 9
        self.complete = False

    def mask(self) -> np.ndarray:
        allowed = np.arange(VOCAB) % 3 == self.rest
        return packed(allowed)

    def accept(self, token_id: int) -> None:
        assert token_id % 3 == self.rest
        self.rest, self.left = (self.rest + 1) % 3, self.left - 1
        self.complete = not self.left


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.thorough), 1.0])
def test_a_constraint_gives_the_same_ids_as_a_mask_on_the_device(backend, rng, temperature):
    ids = prompt(rng, 6)
    options = SamplingParams(temperature=temperature, seed=8)
    sampled = []
    for runner in (backend, LogitsOnly(backend)):
        stats = GenerationStats()
        runs = Engine(runner, [], VOCAB).generate(
            ids, max_tokens=30, sampling=options, stats=stats, constraint=EveryThird()
        )
        sampled.append([token_id for run in runs for token_id in run])
        assert (stats.finish, stats.counts.wasted) == ("stop", 0)
    assert sampled[0] == sampled[1]
    assert [token_id % 3 for token_id in sampled[0]] == [0, 1, 2] * 3
    free = [id_ for run in Engine(backend, [], VOCAB).generate(ids, max_tokens=9) for id_ in run]
    assert [token_id % 3 for token_id in free] != [0, 1, 2] * 3


def test_a_masked_token_is_two_submits_and_writes_only_its_mask(backend, rng):
    ids = prompt(rng, 9)
    backend.begin(SamplingParams(temperature=1.0, seed=1), ids, masked=True)
    every = packed(np.ones(VOCAB, bool))
    out = backend.sample_masked(backend.sample_masked(ids, 0, lambda: every), 9, lambda: every)
    before = backend.device.counters.copy()
    backend.sample_masked(out, 10, lambda: every)
    work = backend.device.counters.since(before)
    assert work.buffer_creates + work.bind_group_creates + work.pipeline_creates == 0
    assert (work.bytes_written, work.bytes_read) == (every.nbytes, 4)
    assert (work.submits, work.maps) == (2 + 1, 1)  # the pass, the sampling, and the readback


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_read_eight_bytes_per_token_and_eight_per_most_probable_token(backend, rng, top):
    ids = prompt(rng, 9)
    backend.begin(SamplingParams(), ids, logprobs=top)
    out = backend.sample(backend.sample(ids, 0, 1), 9, 1)
    before = backend.device.counters.copy()
    backend.sample(out, 10, 4)
    work = backend.device.counters.since(before)
    assert work.bytes_read == 4 * (4 + 8 + 8 * top)
    assert work.bytes_written == 0


def test_greedy_takes_the_largest_logit_of_each_step(backend, rng):
    ids = prompt(rng, 12)
    out = backend.greedy(ids, 0, 6)
    whole = [*ids, *out]
    logits = stepped(backend, whole, len(ids))
    assert out == logits.argmax(axis=1)[:-1].tolist()


def test_more_ids_than_the_ring_holds_equal_those_of_single_steps(backend, rng):
    ids = prompt(rng, 5)
    # Sampled, since the most probable token of a random model is soon the last one again.
    options = SamplingParams(temperature=1.2, top_k=50, seed=int(rng.integers(2**40)))
    backend.begin(options, ids)
    singly = backend.sample(ids, 0, 1)
    while len(singly) < 70:
        singly += backend.sample(singly[-1:], len(ids) + len(singly) - 1, 1)
    backend.begin(options, ids)
    assert backend.sample(ids, 0, 70) == singly
    assert len(set(singly)) > 5


def test_a_smaller_base_rewinds_without_a_trace_of_later_tokens(backend, rng):
    first, second = prompt(rng, 30), prompt(rng, 8)
    backend.logits(first, 0)
    rewound = backend.logits(second, 10)
    single = backend.logits([7], 12)
    fresh = backend.logits([*first[:10], *second], 0)
    assert relative_error(rewound, fresh) < SAME
    assert relative_error(single, backend.logits([*first[:10], *second[:2], 7], 0)) < SAME
    assert relative_error(rewound, backend.logits(first, 0)) > EXACT  # the control


def test_the_same_passes_give_the_same_bits(backend, rng):
    ids = prompt(rng, 20)
    once, again = (stepped(backend, ids, 16) for _ in range(2))
    assert np.array_equal(once, again)


def test_a_prompt_of_several_chunks_equals_torch(backend, package, rng):
    ids = prompt(rng, 300)
    reference = scored(CpuBackend(package, context=CONTEXT), ids)
    assert relative_error(scored(backend, ids), reference) < EXACT
    assert relative_error(stepped(backend, ids, 298), reference[297:]) < EXACT


@pytest.mark.parametrize("kv_dtype", [pytest.param("f32", marks=pytest.mark.thorough), "f16"])
def test_a_device_without_optional_features_computes_the_same(
    device, plain_device, package, rng, kv_dtype
):
    assert not plain_device.features & {"subgroup", "shader-f16"}
    ids = prompt(rng, 40)
    results = []
    for adapter in (device, plain_device):
        gpu_backend = GpuBackend(package, context=CONTEXT, kv_dtype=kv_dtype, device=adapter)
        results.append(stepped(gpu_backend, ids, 36))
        gpu_backend.close()
    # A value near the middle between two f16 numbers may be rounded either way.
    assert relative_error(*results) < {"f32": SAME, "f16": EXACT}[kv_dtype]


def test_fusion_changes_the_dispatches_and_not_the_logits(device, package, backend, rng):
    ids = prompt(rng, 20)
    apart = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device, fused=False)
    assert len(apart.info.decisions) > len(backend.info.decisions)
    assert relative_error(stepped(apart, ids, 16), stepped(backend, ids, 16)) < SAME
    apart.close()


def test_an_unknown_cache_type_is_wrong_usage_and_the_message_lists_the_known_ones(device, package):
    with pytest.raises(UsageError, match="f32 or f16 or q8_0"):
        GpuBackend(package, context=CONTEXT, kv_dtype="q4_0", device=device)


def test_a_q8_0_cache_has_the_stated_size_and_costs_little_accuracy(device, package, rng):
    ids = prompt(rng, 40)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="q8_0", device=device)
    in_f16 = GpuBackend(package, context=CONTEXT, kv_dtype="f16", device=device)
    assert backend.info.kv_bytes * 2 * 32 == in_f16.info.kv_bytes * 34
    in_f16.close()
    reference = scored(CpuBackend(package, context=CONTEXT), ids)[35:]
    error = relative_error(stepped(backend, ids, 36), reference)
    apart = GpuBackend(package, context=CONTEXT, kv_dtype="q8_0", device=device, fused=False)
    again = relative_error(stepped(apart, ids, 36), reference)
    apart.close()
    backend.close()
    assert 1e-5 < error < 2e-2
    assert 1e-5 < again < 2e-2


def test_a_head_dimension_that_is_not_a_multiple_of_the_block_size_has_no_q8_0_cache(
    device, tmp_path, rng
):
    package = write_random_package(tmp_path, llama_manifest("Q8_0", head_dim=80), rng)
    with pytest.raises(UsageError, match=r"multiple of 32, found 80.*`kv_dtype` f16"):
        GpuBackend(package, context=CONTEXT, kv_dtype="q8_0", device=device)


@pytest.mark.thorough
def test_a_package_of_another_writer_runs_as_it_is(device, tmp_path, rng):
    """It has BF16 norms, an F16 embedding in spans, and Q4_K rows whose padding is not zero."""
    manifest = json.loads(FOREIGN.read_text(encoding="utf-8"))
    write_random_package(tmp_path, manifest, rng)
    package = open_package(tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensor = package.tensor(name)
    assert tensor.shape[1] % tensor.parsed_dtype().block_elements, "no lanes are padded"
    ids = rng.integers(0, manifest["architecture"]["vocabSize"], 4).tolist()
    reference = stepped(CpuBackend(package, context=64), ids, 3)
    backend = GpuBackend(package, context=64, kv_dtype="f32", device=device)
    assert relative_error(stepped(backend, ids, 3), reference) < EXACT
    backend.close()
