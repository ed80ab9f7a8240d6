"""Tests of sampling on the GPU: the same logits and seed give the same ids as on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.sampling.batch_advance import batch_advance
from rdrr_runtime.phases.sampling.sample import sample, scatter_entries
from rdrr_runtime.phases.sampling.sample_buffers import PARAM_WORDS, SampleBuffers
from rdrr_runtime.records import entries_of, pack_entries, pack_params, pack_step, searches_of
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler
from support.gpu import Bench, normal
from support.masks import packed

VOCAB = 12_365  # shared by four workgroups, the last of which has few tokens
RING = 512


def start_generation(
    bench: Bench,
    buffers: SampleBuffers,
    options: SamplingParams,
    seen: Sequence[int],
    *,
    sequence: int = 0,
    mask: np.ndarray | None = None,
) -> None:
    """Write the parameters, counts, bias and mask of a generation for one sequence."""
    device, masked = bench.device, mask is not None
    # Without sampling the seed decides nothing.
    params = pack_params(options, options.seed or 0, masked=masked)
    device.write(buffers.params, params, offset=4 * PARAM_WORDS * sequence)
    device.clear(buffers.counts_of(sequence))
    device.clear(buffers.bias)
    for words in pack_entries(entries_of(options, seen)):
        device.write(buffers.entries, words)
        bench.run([scatter_entries(buffers, "set", sequence)], 1)
    if mask is not None:
        device.write(buffers.mask, mask)


class Sampling:
    """A sampler of a single sequence whose passes consist of the sampling phases only."""

    def __init__(self, bench: Bench, vocab: int = VOCAB) -> None:
        self.bench = bench
        self.state = State.create(bench.arena, 1, RING)
        self.logits = bench.arena.empty("logits", 4 * vocab)
        self.buffers = SampleBuffers.create(bench.arena, vocab)

    def sample(
        self,
        logits: np.ndarray,
        count: int,
        options: SamplingParams,
        seen: Sequence[int] = (),
        mask: np.ndarray | None = None,
    ) -> list[int]:
        self.bench.device.write(self.logits, logits)
        self.bench.device.write(self.state.step, pack_step([0], [0]))
        start_generation(self.bench, self.buffers, options, seen, mask=mask)
        phases = sample(self.buffers, self.state, self.logits, searches_of(options), "t")
        for _ in range(count):
            self.bench.run(phases, 1)
        return self.bench.words(self.state.ring)[:count]


@pytest.fixture
def sampling(bench) -> Iterator[Sampling]:
    return Sampling(bench)


def host_samples(
    logits: np.ndarray,
    count: int,
    options: SamplingParams,
    seen: Sequence[int] = (),
    allowed: np.ndarray | None = None,
) -> list[int]:
    sampler, text = Sampler(options), list(seen)
    for _ in range(count):
        text.append(sampler.choose(logits, text, allowed))
    return text[len(seen) :]


OPTIONS: Sequence[Mapping[str, float]] = (
    {},
    {"top_k": 1},
    {"top_k": 1000},
    {"top_k": 10 * VOCAB},
    {"top_p": 0.9},
    {"top_k": 60, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 0.6, "min_p": 0.1},
    {"temperature": 3.0, "top_k": 2000, "top_p": 0.999},
)


@pytest.mark.parametrize("set_options", OPTIONS, ids=str)
def test_the_gpu_samples_the_same_ids_as_the_host(sampling, rng, set_options) -> None:
    logits = 3 * normal(rng, VOCAB)
    given = {"temperature": 1.0, "seed": int(rng.integers(2**63)), **set_options}
    options = SamplingParams(**given)
    assert sampling.sample(logits, 16, options) == host_samples(logits, 16, options)


@pytest.mark.parametrize(
    "set_options",
    [
        [{"top_k": 60, "top_p": 0.8, "min_p": 0.02}] * 3,
        [{"frequency_penalty": 0.6, "repeat_penalty": 1.3}] * 3,
        [{"top_k": 5}, {"temperature": 0.0}, {"top_p": 0.3}],
    ],
    ids=["all searches", "penalties", "options of their own"],
)
def test_a_batch_samples_the_same_ids_as_each_sequence_alone(bench, rng, set_options) -> None:
    rows, steps, seeds = 3, 6, rng.integers(2**63, size=3).tolist()
    sequences = [2, 0, 3]
    state = State.create(bench.arena, rows, ring=rows * steps)
    bench.device.write(state.step, pack_step([0] * rows, [0] * rows, sequences=sequences))
    logits = 3 * normal(rng, rows, VOCAB)
    buffers = SampleBuffers.create(bench.arena, VOCAB, rows=rows, sequences=4)
    seen = [rng.integers(0, VOCAB, 5).tolist() for _ in range(rows)]
    biased = int(rng.integers(VOCAB))
    given = [
        SamplingParams(**{"temperature": 0.9, "seed": seed, "logit_bias": {biased: 9.0}} | options)
        for seed, options in zip(seeds, set_options, strict=True)
    ]
    for sequence, options, ids in zip(sequences, given, seen, strict=True):
        start_generation(bench, buffers, options, ids, sequence=sequence)
    picks = bench.poisoned(rows, 2)
    searches = tuple(map(any, zip(*map(searches_of, given), strict=True)))
    phases = [
        *sample(buffers, state, bench.upload(logits), searches, "t", picks),
        *batch_advance(state, picks, rows=rows, steps=steps, label="t"),
    ]
    for _ in range(steps):
        bench.run(phases, rows)
    sampled = np.array(bench.words(state.ring)).reshape(steps, rows).T.tolist()
    for row in range(rows):
        assert sampled[row] == host_samples(logits[row], steps, given[row], seen[row])


def test_top_p_sums_many_improbable_tokens(sampling, rng) -> None:
    """One token has two fifths of the probability, and thousands of tokens share the rest."""
    logits = 0.01 * normal(rng, VOCAB)
    logits[77] = 9.0
    options = SamplingParams(temperature=1.0, top_p=0.7, seed=int(rng.integers(2**63)))
    sampled = sampling.sample(logits, 64, options)
    assert sampled == host_samples(logits, 64, options)
    assert len(set(sampled)) > 10


def test_another_seed_gives_other_ids(sampling, rng) -> None:
    logits = normal(rng, VOCAB)
    first, other, again = (
        sampling.sample(logits, 16, SamplingParams(temperature=1.0, seed=seed))
        for seed in (1, 2, 1)
    )
    assert first == again != other


@pytest.mark.parametrize("least", [0.0, 20.0], ids=["of both signs", "negative"])
def test_penalties_count_sampled_tokens_and_the_prompt(sampling, rng, least) -> None:
    logits = normal(rng, VOCAB) - np.float32(least)
    seen = np.argsort(-logits)[:20].repeat(2).tolist()
    options = SamplingParams(
        temperature=0.0,
        repeat_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.4,
        logit_bias={5: 2.5, int(logits.argmax()): -100.0},
    )
    sampled = sampling.sample(logits, 30, options, seen)
    assert sampled == host_samples(logits, 30, options, seen)
    assert len(set(sampled)) > 5
    often = SamplingParams(temperature=0.0, frequency_penalty=0.05)
    sampled = sampling.sample(logits, 30, often)
    assert sampled == host_samples(logits, 30, often)
    assert len(set(sampled)) < 20  # some are counted several times
    without = SamplingParams(temperature=0.0, logit_bias={5: -1.0})
    assert (
        sampling.sample(logits, 4, without) == [int(logits.argmax())] * 4
    )  # penalties and bias of the earlier generation are gone


def test_only_allowed_tokens_are_sampled(sampling, rng) -> None:
    logits = normal(rng, VOCAB)
    allowed = np.zeros(VOCAB, bool)
    allowed[rng.choice(VOCAB, 9, replace=False)] = True
    options = SamplingParams(temperature=2.0, top_k=5, seed=3)
    sampled = sampling.sample(logits, 16, options, mask=packed(allowed))
    assert sampled == host_samples(logits, 16, options, allowed=allowed)
    assert not allowed[sampling.sample(logits, 16, options)].all()  # the control: without the mask
    greedy = sampling.sample(logits, 1, SamplingParams(), mask=packed(allowed))
    assert greedy == [int(np.where(allowed, logits, -np.inf).argmax())]


def test_ties_go_to_the_lower_id_without_noise(sampling, rng) -> None:
    logits = normal(rng, VOCAB)
    tied_ids = np.sort(rng.choice(VOCAB, 4, replace=False))
    logits[tied_ids] = 9.0
    assert (
        sampling.sample(logits, 2, SamplingParams(frequency_penalty=1e-6)) == tied_ids[:2].tolist()
    )


@pytest.mark.thorough  # the host's samples, which are the same, do
def test_samples_follow_the_truncated_softmax(sampling, rng) -> None:
    """Chi-square of 512 samples of six kept tokens; by chance it exceeds 30 once in 70,000 runs."""
    logits = np.full(VOCAB, -20.0, np.float32)
    kept = np.sort(rng.choice(VOCAB, 6, replace=False))
    logits[kept] = rng.uniform(0, 1.5, 6)
    options = SamplingParams(temperature=1.5, min_p=0.01, seed=int(rng.integers(2**63)))
    ids = sampling.sample(logits, RING, options)
    probability = np.exp(logits[kept] / 1.5)
    expected = RING * probability / probability.sum()
    counts = np.array([ids.count(int(id_)) for id_ in kept])
    assert counts.sum() == RING
    assert ((counts - expected) ** 2 / expected).sum() < 30


def test_logits_of_minus_infinity_are_never_sampled(plain_bench) -> None:
    """The device has no optional features, and the mask of the vocabulary is a single word."""
    sampling = Sampling(plain_bench, 32)
    logits = np.full(32, -np.inf, np.float32)
    logits[[3, 7]] = 0.0
    ids = sampling.sample(logits, 32, SamplingParams(temperature=1.0, top_k=30, top_p=0.99, seed=1))
    assert set(ids) == {3, 7}
