"""Features that every decoding strategy has without code of its own.

These are cached prefixes, log-probabilities, constraints, penalties, stop ids and context shift. In
most tests the next token of the model is a hash of its whole cache, so that one wrong slot changes
the sequence.
"""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.decode.drafts import NgramDraft, Proposal
from rdrr_runtime.decode.speculative import SpeculativeDecoding
from rdrr_runtime.decode.wedlm import Wedlm, WedlmDecoding
from rdrr_runtime.engine import Engine
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams
from support.hash_backend import VOCAB, Hashing, forget, generate, logits_after
from support.masks import packed
from support.packages import VOCAB as PACKAGE_VOCAB
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of


class HalfRight:
    """A draft that proposes the right token about half of the time."""

    def begin(self, ids, base):
        del ids
        return base

    def end(self, ids) -> None: ...

    def propose(self, ids, count, sampler) -> Proposal:
        del sampler
        drafted, sequence = [], list(ids)
        while len(drafted) < count:
            best = int(logits_after(sequence).argmax())
            drafted.append(best if len(sequence) % 2 else (best + 1) % VOCAB)
            sequence.append(drafted[-1])
        return Proposal(drafted)


DRAFTED = [SpeculativeDecoding(HalfRight(), 4), SpeculativeDecoding(NgramDraft(shortest=1), 3)]
drafted = pytest.mark.parametrize("strategy", DRAFTED, ids=["half right", "ngram"])


def prompt_of(rng, size: int) -> list[int]:
    return rng.integers(0, VOCAB, size).tolist()


def both(strategy, ids, context: int = 300, stops=(), **options):
    """Return ids, statistics and records of autoregressive decoding and of a strategy."""
    results = []
    for decoding in (None, strategy):
        given = {name: make() if callable(make) else make for name, make in options.items()}
        engine = Engine(Hashing(context), stops, VOCAB)
        out, stats = generate(engine, ids, strategy=decoding, **given)
        results.append((out, stats, given))
    return results


@drafted
def test_logprobs_equal_those_of_autoregressive_decoding(rng, strategy):
    plain, other = both(strategy, prompt_of(rng, 8), max_tokens=20, logprobs=lambda: Logprobs(3))
    assert other[0] == plain[0]
    assert other[2]["logprobs"].tokens == plain[2]["logprobs"].tokens
    assert [token.token_id for token in plain[2]["logprobs"].tokens] == plain[0]


@drafted
def test_penalties_and_biases_apply_as_in_autoregressive_decoding(rng, strategy):
    biased = int(rng.integers(VOCAB))
    sampling = SamplingParams(presence_penalty=4.0, logit_bias={biased: 3.0})
    ids = prompt_of(rng, 8)
    plain, other = both(strategy, ids, max_tokens=30, sampling=sampling)
    assert other[0] == plain[0]
    assert both(strategy, ids, max_tokens=30)[0][0] != plain[0]  # the control


class Multiples:
    """A constraint that allows ids of changing remainders, complete after a number of tokens."""

    def __init__(self, length: int = 12) -> None:
        self.taken, self.length = 0, length

    @property
    def complete(self) -> bool:
        return self.taken == self.length

    def mask(self) -> np.ndarray:
        allowed = np.arange(VOCAB) % 3 == self.taken % 3
        return packed(allowed)

    def accept(self, token_id: int) -> None:
        assert token_id % 3 == self.taken % 3
        self.taken += 1


@drafted
@pytest.mark.parametrize("length", range(1, 9))
def test_a_constraint_holds_and_ends_the_sequence_when_it_is_complete(rng, strategy, length):
    ids = prompt_of(rng, 6)
    plain, other = both(strategy, ids, max_tokens=30, constraint=lambda: Multiples(length))
    assert other[0] == plain[0]
    assert [id_ % 3 for id_ in other[0]] == [at % 3 for at in range(length)]
    assert other[1].finish == plain[1].finish == "stop"
    assert other[2]["constraint"].taken == length


def test_a_constraint_that_allows_nothing_is_an_error(rng):
    class Nothing(Multiples):
        def mask(self) -> np.ndarray:
            return np.zeros(2, np.uint32)

    for strategy in (None, DRAFTED[0]):
        with pytest.raises(GenerationError, match="no token satisfies"):
            generate(
                Engine(Hashing(), [], VOCAB),
                prompt_of(rng, 3),
                max_tokens=2,
                strategy=strategy,
                constraint=Nothing(),
            )


@drafted
def test_only_ids_that_the_cache_does_not_hold_are_run(rng, strategy):
    backend = Hashing()
    engine, ids = Engine(backend, [], VOCAB), prompt_of(rng, 20)
    out, stats = generate(engine, ids, max_tokens=9, strategy=strategy)
    assert stats.cached_tokens == 0
    longer = [*ids, *out, *prompt_of(rng, 4)]
    before = backend.ran
    again, stats = generate(engine, longer, max_tokens=1, strategy=strategy)
    assert stats.cached_tokens >= len(ids) + len(out) - 1
    assert backend.ran - before == len(longer) - stats.cached_tokens
    assert again == generate(Engine(Hashing(), [], VOCAB), longer, max_tokens=1)[0]


@drafted
@pytest.mark.parametrize("keep", [0, 5])
def test_a_full_context_shifts_as_in_autoregressive_decoding(rng, strategy, keep):
    ids = prompt_of(rng, 10)
    plain, other = both(strategy, ids, context=24, max_tokens=50, context_shift=keep)
    assert other[0] == plain[0]
    assert other[1].context_shifts == plain[1].context_shifts > 1
    ended = both(strategy, ids, context=24, max_tokens=50)[1]
    assert ended[0] == plain[0][: len(ended[0])]
    assert (len(ended[0]), ended[1].finish) == (15, "context")


@pytest.fixture(scope="module")
def on_cpu(request, tmp_path_factory) -> CpuBackend:
    manifest = llama_manifest("F32", embedding="F32")
    folder = tmp_path_factory.mktemp("strategies")
    package = write_random_package(folder, manifest, generator_of(request))
    return CpuBackend(package, context=48)


WINDOWED = WedlmDecoding(7, Wedlm(window=4, tau=4.2))


def test_wedlm_records_the_logprobs_of_delivered_tokens(on_cpu, rng):
    prompt = prompt_of(rng, 6)
    recorded = Logprobs(2)
    engine = Engine(on_cpu, [], PACKAGE_VOCAB)
    out, _ = generate(engine, prompt, max_tokens=15, strategy=WINDOWED, logprobs=recorded)
    plain, _ = generate(engine, prompt, max_tokens=15, strategy=WINDOWED)
    assert out == plain
    assert [token.token_id for token in recorded.tokens] == out
    for stop in out[:6]:
        ended = Logprobs(2)
        engine = Engine(on_cpu, [stop], PACKAGE_VOCAB)
        ids, _ = generate(engine, prompt, max_tokens=15, strategy=WINDOWED, logprobs=ended)
        assert [token.token_id for token in ended.tokens] == ids
    for token in recorded.tokens:
        assert token.top[0] == (
            token.token_id,
            token.logprob,
        )  # most probable when filled
        assert token.logprob > token.top[1][1]


def test_wedlm_continues_from_a_cached_prefix_and_past_a_full_context(on_cpu, rng):
    engine, ids = Engine(on_cpu, [], PACKAGE_VOCAB), prompt_of(rng, 12)
    (first, *_), _ = generate(engine, ids, max_tokens=6, strategy=WINDOWED)
    # Another id than the generated one, which is cached as well.
    longer = [*ids, (first + 1) % PACKAGE_VOCAB, *prompt_of(rng, 2)]
    out, stats = generate(engine, longer, max_tokens=40, strategy=WINDOWED)
    assert stats.cached_tokens == 12
    assert (len(out), stats.finish) == (48 - 15, "context")
    forget(engine)
    assert generate(engine, longer, max_tokens=40, strategy=WINDOWED)[0] == out
    going, stats = generate(engine, longer, max_tokens=60, strategy=WINDOWED, context_shift=4)
    assert going[: len(out)] == out
    assert (len(going), stats.finish) == (60, "length")
    assert stats.context_shifts >= 1


def test_wedlm_refuses_constraints_with_a_reason(on_cpu, rng):
    engine, ids = Engine(on_cpu, [], PACKAGE_VOCAB), prompt_of(rng, 3)
    with pytest.raises(UsageError, match="out of order"):
        engine.generate(ids, max_tokens=2, strategy=WINDOWED, constraint=Multiples())
    assert generate(engine, ids, max_tokens=2, strategy=WINDOWED)[0]
