"""Speculative decoding gives the tokens of the target model, whatever the draft proposes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from rdrr_format.errors import UsageError
from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.decode.drafts import Draft, ModelDraft, NgramDraft, Proposal
from rdrr_runtime.decode.probabilities import ProbabilitySampler
from rdrr_runtime.decode.speculative import Speculative, SpeculativeDecoding
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import distribution
from support.comparison import relative_error
from support.packages import VOCAB, llama_manifest, write_random_package

CONTEXT = 96


class Table:
    """A backend whose logits after a token are a row of a table; it checks the cache for gaps."""

    def __init__(self, table: np.ndarray, context: int = 200) -> None:
        self.info = BackendInfo("fake", None, context, 0, 0)
        self.table = np.asarray(table, np.float32)
        self.cache: list[int] = []

    def _run(self, ids: Sequence[int], base: int) -> np.ndarray:
        assert base <= len(self.cache), "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context
        self.cache[base:] = ids
        return self.table[list(ids)]

    def fill(self, ids: Sequence[int], base: int) -> None:
        self._run(ids, base)

    def logits(self, ids: Sequence[int], base: int) -> np.ndarray:
        return self._run(ids, base)[-1:]

    def window_logits(self, ids: Sequence[int], base: int, *, last_n: int) -> np.ndarray:
        return self._run(ids, base)[-last_n:]

    def window_picks(self, ids, base, *, last_n):
        rows = self.window_logits(ids, base, last_n=last_n)
        return rows.argmax(axis=1).tolist(), np.zeros(last_n, np.float32)

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        out = [int(self.logits(ids, base).argmax())]
        while len(out) < count:
            out.append(int(self.logits(out[-1:], len(self.cache)).argmax()))
        return out


def following(nexts: Sequence[int]) -> np.ndarray:
    """Return a table by which token t is followed by nexts[t]."""
    return 9.0 * np.eye(len(nexts))[list(nexts)]


def run(
    backend,
    strategy: SpeculativeDecoding | None,
    prompt: Sequence[int],
    max_tokens: int,
    stops=(),
    **options,
) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    engine = Engine(backend, stops, VOCAB)
    runs = engine.generate(prompt, max_tokens=max_tokens, stats=stats, strategy=strategy, **options)
    return [token_id for ids in runs for token_id in ids], stats


RING = [(t + 1) % 20 for t in range(20)]
WRONG_AT_7 = [3 if t == 7 else after for t, after in enumerate(RING)]


@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 30])
def test_ids_equal_those_of_greedy_decoding_even_with_wrong_draft_tokens(tokens, max_tokens):
    for draft in (NgramDraft(), ModelDraft(Table(following(WRONG_AT_7)))):
        ids, stats = run(
            Table(following(RING)), SpeculativeDecoding(draft, tokens), [4, 5], max_tokens
        )
        assert ids == [(6 + at) % 20 for at in range(max_tokens)]
        counts = stats.counts
        assert stats.finish == "length"
        assert counts.forwards <= max(0, max_tokens - 1)
        assert counts.rows == counts.forwards + counts.drafted
        assert counts.wasted_rows == counts.drafted - counts.accepted
        assert counts.forwards + counts.accepted == max_tokens - 1


@pytest.mark.parametrize("ends_at", range(1, 12))
def test_a_sequence_ends_at_a_stop_id_anywhere_among_the_draft_tokens(ends_at):
    draft = ModelDraft(Table(following(WRONG_AT_7)))
    stop = (5 + ends_at) % 20
    ids, stats = run(
        Table(following(RING)), SpeculativeDecoding(draft, 4), [4, 5], 50, stops=[stop]
    )
    assert ids == [(6 + at) % 20 for at in range(ends_at)]
    assert stats.finish == "stop"


def test_neither_cache_is_filled_beyond_its_context():
    draft = ModelDraft(Table(following(RING), context=9))
    ids, stats = run(Table(following(RING), context=14), SpeculativeDecoding(draft, 4), [4, 5], 50)
    assert ids == [(6 + at) % 20 for at in range(13)]  # the last id needs no slot
    assert stats.finish == "context"


def test_draft_tokens_of_the_same_model_are_all_accepted(tmp_path, rng):
    package = write_random_package(tmp_path, llama_manifest("F32", embedding="F32"), rng)
    model, same = (CpuBackend(package, context=CONTEXT) for _ in range(2))
    prompt = rng.integers(0, VOCAB, 5).tolist()
    ids, stats = run(model, SpeculativeDecoding(ModelDraft(same), 4), prompt, 26)
    assert ids == model.greedy(prompt, 0, 26)
    assert stats.counts.accepted == stats.counts.drafted == 20
    assert stats.counts.forwards == 5  # 25 after the prompt's, five a pass
    warm = SamplingParams(temperature=1.0, top_k=40, seed=5)
    _, stats = run(model, SpeculativeDecoding(ModelDraft(same), 4), prompt, 26, sampling=warm)
    # Both models give equal probabilities, apart from the rounding of passes of several rows.
    assert stats.counts.accepted >= stats.counts.drafted - 1


@pytest.mark.thorough
def test_on_the_gpu_ids_equal_those_of_greedy_decoding_and_rejected_tokens_leave_no_trace(
    device, tmp_path, rng
):
    package = write_random_package(tmp_path, llama_manifest(), rng)
    backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    for _ in range(10):
        prompt = rng.integers(0, VOCAB, 6).tolist()
        expected = backend.greedy(prompt, 0, 12)
        rows = np.sort(backend.logits([*prompt, *expected], 0, all_rows=True)[5:-1])
        if (rows[:, -1] - rows[:, -2]).min() > 1e-2:  # rounding cannot change a choice
            break
    # A draft that proposes right tokens in the first half, and wrong ones after.
    known = [*prompt, *expected]

    class Half:
        def begin(self, ids, base):
            del ids
            return base

        def end(self, ids) -> None: ...

        def propose(
            self, ids: Sequence[int], count: int, sampler: ProbabilitySampler | None
        ) -> Proposal:
            assert sampler is None
            right = known[len(ids) :][: count // 2]
            return Proposal([*right, *[(VOCAB - 1 - id_) for id_ in right]][:count])

    ids, stats = run(backend, SpeculativeDecoding(Half(), 4), prompt, 12)
    assert ids == expected
    assert 0 < stats.counts.accepted < stats.counts.drafted
    after = backend.logits(expected[-1:], len(known) - 1)
    assert relative_error(after, backend.logits(known, 0)) < 1e-3
    backend.close()


def pairs_sampled(
    strategy: SpeculativeDecoding | None,
    table: np.ndarray,
    seeds: Sequence[int],
    sampling: SamplingParams,
) -> Counter:
    """Count the pairs of second and third tokens over the generations of many seeds."""
    counts: Counter = Counter()
    for seed in seeds:
        seeded = replace(sampling, seed=seed)
        ids, _ = run(Table(table), strategy, [0, 1, 0, 1], 3, sampling=seeded)
        counts[tuple(ids[1:])] += 1
    return counts


def exact(table: np.ndarray, options: SamplingParams) -> dict[tuple[int, ...], float]:
    rows = [distribution(row, [], options) for row in np.asarray(table, np.float32)]
    size = len(table)
    return {
        (b, c): sum(rows[1][a] * rows[a][b] for a in range(size)) * rows[b][c]
        for b, c in product(range(size), repeat=2)
    }


def distance(counts: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """Return the total variation distance between relative counts and probabilities."""
    total = sum(counts.values())
    return sum(abs(counts[key] / total - probability) for key, probability in expected.items()) / 2


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"top_k": 3}, "ngram"),
        ({"top_p": 0.8}, "model"),
        pytest.param({}, "model", marks=pytest.mark.thorough),
        pytest.param({}, "ngram", marks=pytest.mark.thorough),
        pytest.param({"top_k": 3}, "model", marks=pytest.mark.thorough),
        pytest.param({"top_p": 0.8}, "ngram", marks=pytest.mark.thorough),
    ],
)
def test_sampled_tokens_have_the_distribution_of_the_model(rng, kind, options):
    """1,500 samples of 16 outcomes have a total variation distance of about 0.03.

    The draft model finds probable what the model does not, so that many of its ids are rejected.
    """
    seeds = rng.integers(2**63, size=1500).tolist()
    sampling = SamplingParams(temperature=1.2, **options)
    table = 1.5 * rng.standard_normal((4, 4))
    other = rng.standard_normal((4, 4)) - table
    draft: Draft = NgramDraft(shortest=1) if kind == "ngram" else ModelDraft(Table(other))
    expected = exact(table, sampling)
    counts = pairs_sampled(SpeculativeDecoding(draft, 2), table, seeds, sampling)
    assert distance(counts, expected) < 0.06
    flat = Counter(dict.fromkeys(expected, 1))
    assert distance(flat, expected) > 0.1  # the control


def test_the_same_seed_gives_the_same_sequence(rng):
    table = rng.standard_normal((8, 8))
    sequences = []
    for seed in (1, 1, 2):
        draft = ModelDraft(Table(table + rng.standard_normal((8, 8)) * 0))
        sampling = SamplingParams(temperature=1.0, seed=seed)
        strategy = SpeculativeDecoding(draft, 3)
        sequences.append(run(Table(table), strategy, [1, 2], 40, sampling=sampling)[0])
    assert sequences[0] == sequences[1] != sequences[2]


def test_an_ngram_draft_continues_repetitions_and_proposes_nothing_for_new_text():
    draft = NgramDraft()
    draft.begin([], 0)
    assert draft.propose([1, 2, 3, 4], 3, None).ids == []
    assert draft.propose([1, 2, 3, 4, 9, 2, 3], 5, None).ids == [4, 9, 2, 3, 4]
    assert draft.propose([1, 2, 3, 4, 9, 2, 3, 7, 2, 3], 2, None).ids == [
        7,
        2,
    ]  # after the latest occurrence
    draft.begin([], 0)
    assert draft.propose([5, 2, 3], 2, None).ids == []


def test_a_draft_model_runs_only_ids_that_its_cache_does_not_hold():
    backend = Table(following(RING))
    draft = ModelDraft(backend)
    draft.begin([], 0)
    assert draft.propose([1, 2, 3], 4, None).ids == [4, 5, 6, 7]
    passes: list[tuple[list[int], int]] = []
    inner = backend._run
    backend._run = lambda ids, base: (passes.append((list(ids), base)), inner(ids, base))[1]
    draft.propose([1, 2, 3, 4, 5, 9], 1, None)  # two draft tokens were accepted
    assert passes == [([9], 5)]
    passes.clear()
    draft.begin([], 0)
    draft.propose([1, 2, 8], 1, None)  # another sequence with the same beginning
    assert passes == [([8], 2)]


def test_zero_draft_tokens_are_a_usage_error():
    with pytest.raises(UsageError, match="tokens"):
        Speculative(tokens=0)
