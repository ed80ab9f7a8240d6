"""The sampler of the host: its distribution, its parameters and its random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import UsageError
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import random_words
from rdrr_runtime.sampling.sampler import Sampler


def samples(logits: np.ndarray, count: int, **options: float) -> np.ndarray:
    sampler = Sampler(SamplingParams(**options))
    return np.array([sampler.choose(logits) for _ in range(count)])


def test_temperature_zero_takes_the_most_probable_token_and_ties_go_to_the_lower_id() -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0], np.float32)
    assert Sampler(SamplingParams()).choose(logits) == 1


def test_samples_follow_the_softmax(rng: np.random.Generator) -> None:
    logits = rng.normal(size=5).astype(np.float32)
    temperature = 0.7
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    counts = (
        np.bincount(samples(logits, 12_000, temperature=temperature, seed=1), minlength=5) / 12_000
    )
    np.testing.assert_allclose(counts, expected, atol=0.02)


def test_the_same_seed_gives_the_same_sequence_and_another_seed_another(
    rng: np.random.Generator,
) -> None:
    logits = rng.normal(size=100).astype(np.float32)
    first = samples(logits, 50, temperature=1.0, seed=7)
    assert (first == samples(logits, 50, temperature=1.0, seed=7)).all()
    assert (first != samples(logits, 50, temperature=1.0, seed=8)).any()


def test_top_k_keeps_k_tokens(rng: np.random.Generator) -> None:
    logits = rng.normal(size=50).astype(np.float32)
    best = set(np.argsort(-logits)[:3])
    assert set(samples(logits, 500, temperature=5.0, top_k=3, seed=0)) == best
    assert len(set(samples(logits, 500, temperature=5.0, seed=0))) > 3


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    assert set(samples(logits, 400, temperature=1.0, top_p=0.6, seed=0)) == {0, 1}
    assert set(samples(logits, 400, temperature=1.0, top_p=0.4, seed=0)) == {0}
    assert set(samples(logits, 400, temperature=1.0, top_p=1.0, seed=0)) == {0, 1, 2, 3}


def test_min_p_keeps_tokens_close_to_the_most_probable_one() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    assert set(samples(logits, 400, temperature=1.0, min_p=0.5, seed=0)) == {0, 1}
    # A threshold below that of top-k or top-p does not bring back what they left out.
    assert set(samples(logits, 400, temperature=1.0, min_p=0.01, top_k=2, seed=0)) == {0, 1}
    assert set(samples(logits, 400, temperature=1.0, min_p=0.01, top_p=0.7, seed=0)) == {0, 1}


def test_a_repeat_penalty_lowers_positive_and_negative_logits_of_seen_tokens() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    sampler = Sampler(SamplingParams(repeat_penalty=1.2))
    assert sampler.choose(logits) == 0
    assert sampler.choose(logits, seen=[0]) == 1
    negative = np.array([-1.0, -1.1], np.float32)
    assert sampler.choose(negative, seen=[0]) == 1


def test_the_frequency_penalty_counts_occurrences_and_the_presence_penalty_does_not() -> None:
    logits = np.array([2.0, 1.9, 1.75], np.float32)
    often = Sampler(SamplingParams(frequency_penalty=0.1))
    assert often.choose(logits, seen=[0]) == 0  # ties go to the lower id
    assert often.choose(logits, seen=[0, 0]) == 1
    once = Sampler(SamplingParams(presence_penalty=0.2))
    assert once.choose(logits, seen=[0] * 9) == 1
    assert once.choose(logits, seen=[0, 1, 0]) == 0


def test_a_bias_is_added_to_a_logit() -> None:
    logits = np.array([2.0, 1.9], np.float32)
    assert Sampler(SamplingParams(logit_bias={1: 0.2})).choose(logits) == 1


def test_a_temperature_near_zero_takes_the_most_probable_token(rng: np.random.Generator) -> None:
    logits = rng.normal(size=100).astype(np.float32)
    assert set(samples(logits, 20, temperature=1e-45, seed=1)) == {int(logits.argmax())}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough), 2**63])
def test_random_words_are_uniform_over_ids_and_over_steps(seed: int) -> None:
    """Check the chi-square statistic of 64 bins.

    With random seeds it would exceed 150 about once in 10^8 runs.
    """
    over_ids = random_words(seed, 5, range(6400))
    over_steps = np.array([random_words(seed, step, [7])[0] for step in range(6400)])
    for words in (over_ids, over_steps):
        counts = np.bincount(words >> 26, minlength=64)
        assert ((counts - 100) ** 2 / 100).sum() < 150
    assert abs(np.corrcoef(over_ids, random_words(seed, 6, range(6400)))[0, 1]) < 0.07


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"min_p": 2.0},
     {"repeat_penalty": 0.0}, {"seed": -1}, {"temperature": float("inf")},
     {"frequency_penalty": float("nan")}, {"presence_penalty": 1e30}, {"logit_bias": {3: 1e30}}],
    ids=str,
)  # fmt: skip
def test_an_option_out_of_range_is_a_usage_error(wrong: dict) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(wrong))}`"):
        SamplingParams(**wrong)
