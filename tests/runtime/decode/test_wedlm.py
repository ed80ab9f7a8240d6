"""WeDLM decoding on the CPU and on the GPU, compared with its definition in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.backend import Backend, BackendInfo
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.wedlm import Wedlm, WedlmDecoding
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import AHEAD, GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of
from support.wedlm_reference import Llama, Result, decode

CONTEXT, MASK, CLOSE = 96, 7, 1e-3
SETTINGS = [
    (1, None, 0.0, None),
    (4, 0.4, 0.02, None),
    (8, 4.1, 0.02, None),
    (16, 9.0, 0.02, None),
    (16, 4.2, 0.01, 3),
    (16, None, 0.1, None),
]
"""Window, tau, lambda and max_per_step, from one token per pass to a whole window per pass."""


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wedlm")
    manifest = llama_manifest("F32", embedding="F32", **{**SMALL, "layers": 2})
    return write_random_package(folder, manifest, generator_of(request))


@pytest.fixture(scope="module")
def on_cpu(package) -> CpuBackend:
    return CpuBackend(package, context=CONTEXT)


@pytest.fixture(scope="module")
def on_gpu(device, package) -> Iterator[GpuBackend]:
    gpu_backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    gpu_backend._masks.ahead = AHEAD  # as on a GPU
    yield gpu_backend
    gpu_backend.close()


def run(
    backend: Backend,
    strategy: WedlmDecoding,
    prompt: Sequence[int],
    max_tokens: int,
    stops=(),
    **options,
) -> tuple[list[list[int]], GenerationStats]:
    stats = GenerationStats()
    engine = Engine(backend, stops, backend.vocab if isinstance(backend, Confident) else VOCAB)
    runs = engine.generate(prompt, max_tokens=max_tokens, stats=stats, strategy=strategy, **options)
    return list(runs), stats


def flat(runs: list[list[int]]) -> list[int]:
    return [token_id for ids in runs for token_id in ids]


def defined(package, rng, setting, max_tokens: int, stops=()) -> tuple[list[int], Result]:
    """Return a prompt and the passes of the definition, chosen so that rounding decides nothing."""
    window, tau, slope, cap = setting
    model = Llama.of(package)
    for _ in range(20):
        prompt = rng.integers(0, VOCAB, 5).tolist()
        model.cache.clear()
        result = decode(
            model,
            prompt,
            mask=MASK,
            window=window,
            tau=tau,
            slope=slope,
            cap=cap,
            max_tokens=max_tokens,
            stops=stops,
        )
        if result.closest > 1e-4:
            return prompt, result
    raise AssertionError("rounding would decide the result of every prompt")


CASES = [(where, setting) for where in ("on_cpu", "on_gpu") for setting in SETTINGS]
"""Backends and settings; on the GPU, passes run ahead of readback."""


@pytest.mark.cover
@pytest.mark.parametrize(("where", "setting"), CASES)
def test_every_pass_equals_that_of_the_definition(request, package, rng, where, setting):
    window, tau, slope, cap = setting
    prompt, expected = defined(package, rng, setting, 16)
    strategy = WedlmDecoding(MASK, Wedlm(window, tau, slope, cap))
    runs, stats = run(request.getfixturevalue(where), strategy, prompt, 16)
    assert [id_ for id_ in expected.added if id_] == runs
    counts = stats.counts
    assert counts.forwards - counts.wasted == len(expected.rows)
    assert counts.rows == sum(expected.rows) <= 2 * window * len(expected.rows)
    assert counts.wasted_rows == counts.rows - 16
    assert stats.tokens_per_forward == pytest.approx(16 / counts.forwards)
    assert counts.wasted <= (AHEAD if where == "on_gpu" else 0)
    assert stats.finish == "length"
    if tau is None:
        assert set(expected.filled) == {1}
        assert len(expected.rows) == 16  # one mask per pass


@pytest.mark.parametrize("where", ["on_cpu", pytest.param("on_gpu", marks=pytest.mark.thorough)])
def test_tokens_are_cached_as_if_they_were_part_of_the_prompt(request, rng, where):
    backend = request.getfixturevalue(where)
    prompt = rng.integers(0, VOCAB, 6).tolist()
    strategy = WedlmDecoding(MASK, Wedlm(4, tau=4.2))
    engine = Engine(backend, (), VOCAB)
    new = flat(list(engine.generate(prompt, max_tokens=20, strategy=strategy)))
    sequence = [*prompt, *new]
    assert len(sequence) == 26
    stats = GenerationStats()
    list(engine.generate([*sequence, 3], max_tokens=1, stats=stats))
    cached = stats.cached_tokens
    assert 26 - 4 <= cached < 26  # the last pass ran all but the tokens that it filled
    list(engine.generate(prompt, max_tokens=20, strategy=strategy))
    left = backend.logits([*sequence[cached:], 3], cached)
    fresh = backend.logits([*sequence, 3], 0)
    assert relative_error(left, fresh) < CLOSE
    swapped = [*sequence[:10], sequence[10] ^ 1, *sequence[11:], 3]
    assert relative_error(left, backend.logits(swapped, 0)) > CLOSE  # the control


@pytest.mark.thorough
def test_passes_submitted_in_vain_do_not_disturb_the_next_generation(on_gpu, rng):
    prompt = rng.integers(0, VOCAB, 6).tolist()
    before = on_gpu.greedy(prompt, 0, 8)
    engine = Engine(on_gpu, (), VOCAB)
    runs = engine.generate(prompt, max_tokens=40, strategy=WedlmDecoding(MASK, Wedlm(8, 4.1)))
    some = next(runs)
    runs.close()
    assert flat(list(engine.generate(prompt, max_tokens=8))) == before
    again = flat(run(on_gpu, WedlmDecoding(MASK, Wedlm(8, 4.1)), prompt, 40)[0])
    assert again[: len(some)] == some


@pytest.mark.thorough
def test_passes_that_do_not_run_ahead_are_launched_for_their_own_rows(on_gpu, package, rng):
    prompt, expected = defined(package, rng, SETTINGS[2], 16)
    on_gpu._masks.ahead, launched = 0, []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on_gpu._executor, "run", recording(on_gpu._executor.run, launched))
            runs, stats = run(on_gpu, WedlmDecoding(MASK, Wedlm(8, 4.1)), prompt, 16)
    finally:
        on_gpu._masks.ahead = AHEAD
    assert flat(runs) == expected.ids
    assert stats.counts.wasted == 0
    assert launched == [len(prompt), *expected.rows]


def recording(run, launched: list[int]):
    def recorded(prepared, rows, times=1):
        launched.append(rows)
        run(prepared, rows, times)

    return recorded


@pytest.mark.thorough
def test_a_window_too_large_for_a_pass_is_filled_on_the_host(on_gpu, package, rng):
    prompt, expected = defined(package, rng, (17, 4.2, 0.02, None), 20)
    runs, stats = run(on_gpu, WedlmDecoding(MASK, Wedlm(17, 4.2, 0.02)), prompt, 20)
    assert runs == [id_ for id_ in expected.added if id_]
    assert (stats.counts.forwards, stats.counts.wasted) == (len(expected.rows), 0)


def test_sampling_at_a_tiny_temperature_takes_the_most_probable_tokens(on_cpu, package, rng):
    prompt, expected = defined(package, rng, SETTINGS[2], 12)
    options = Wedlm(8, 4.1)
    strategy = WedlmDecoding(MASK, options)
    cold = SamplingParams(temperature=1e-4, seed=1)
    assert flat(run(on_cpu, strategy, prompt, 12, sampling=cold)[0]) == expected.ids
    warm = SamplingParams(temperature=1.5, seed=1)
    once, again = (flat(run(on_cpu, strategy, prompt, 12, sampling=warm)[0]) for _ in range(2))
    assert once == again != expected.ids


def test_scaled_entropy_fills_more_masks_at_a_low_temperature(on_cpu, rng):
    prompt = rng.integers(0, VOCAB, 6).tolist()
    passes = []
    cold = SamplingParams(temperature=0.1, seed=1)
    for entropy in ("raw", "scaled"):
        strategy = WedlmDecoding(MASK, Wedlm(8, 1.0, 0.0, entropy=entropy))
        _, stats = run(on_cpu, strategy, prompt, 24, sampling=cold)
        passes.append(stats.counts.forwards)
    assert passes[1] < passes[0]


class Confident:
    """A backend that knows the token at each position, and is confident except at some."""

    vocab = 64

    def __init__(
        self, sequence: Sequence[int], uncertain: Sequence[int] = (), context: int = 100
    ) -> None:
        self.info = BackendInfo("fake", None, context, 0, 0)
        self.sequence, self.uncertain = list(sequence), set(uncertain)
        self.slots = 0

    def fill(self, ids: Sequence[int], base: int) -> None:
        self.slots = base + len(ids)

    def window_picks(self, ids, base, *, last_n, positions):
        assert base <= self.slots, "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context
        known = len(ids) - last_n
        halves = [*positions[:known]], [*positions[known:]]
        assert all(part == sorted(part) for part in halves)
        assert [ids[at] for at in range(known)] == [self.sequence[at] for at in halves[0]]
        self.slots = base + len(ids)
        entropy = [5.0 if at in self.uncertain else 0.1 for at in halves[1]]
        return [self.sequence[at] for at in halves[1]], np.array(entropy, np.float32)


SEQUENCE = list(range(40, 60)) + list(range(20, 40))


@pytest.mark.parametrize("window", [1, 2, 5, 16])
@pytest.mark.parametrize("ends_at", [3, 4, 9, 10])
def test_a_sequence_ends_at_a_stop_id_anywhere_in_a_pass(window: int, ends_at: int) -> None:
    runs, stats = run(
        Confident(SEQUENCE, uncertain=[5, 8]),
        WedlmDecoding(MASK, Wedlm(window)),
        SEQUENCE[:3],
        30,
        stops=[SEQUENCE[ends_at]],
    )
    assert flat(runs) == SEQUENCE[3 : ends_at + 1]
    assert stats.finish == "stop"


def test_a_stop_id_behind_a_mask_does_not_end_the_sequence() -> None:
    """A stop id after a gap is filled first; it only counts once the gap is filled."""
    backend = Confident(SEQUENCE, uncertain=[4])
    runs, stats = run(backend, WedlmDecoding(MASK, Wedlm(4)), SEQUENCE[:3], 30, stops=[SEQUENCE[5]])
    assert runs == [[SEQUENCE[3]], [SEQUENCE[4], SEQUENCE[5]]]
    # The order of filling: the last of the first four, the position added after it, then the gap.
    assert stats.counts.forwards == 3


def test_a_generated_mask_token_does_not_end_the_sequence() -> None:
    sequence = [*SEQUENCE[:5], MASK, MASK, *SEQUENCE[7:]]
    runs, _ = run(Confident(sequence), WedlmDecoding(MASK, Wedlm(4)), sequence[:3], 10)
    assert flat(runs) == sequence[3:13]


def test_no_pass_goes_beyond_max_tokens_or_the_context() -> None:
    runs, stats = run(
        Confident(SEQUENCE, context=12), WedlmDecoding(MASK, Wedlm(16)), SEQUENCE[:3], 30
    )
    assert flat(runs) == SEQUENCE[3:12]
    assert stats.finish == "context"
    assert stats.counts.rows == 9  # each position once, as a mask
    with pytest.raises(GenerationError, match="no room"):
        run(Confident(SEQUENCE, context=3), WedlmDecoding(MASK), SEQUENCE[:3], 30)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"window": 0}, "window"),
        ({"tau": -0.1}, "tau"),
        ({"slope": -1.0}, "slope"),
        ({"max_per_step": 0}, "max_per_step"),
    ],
)
def test_an_option_out_of_range_is_a_usage_error(options, name) -> None:
    with pytest.raises(UsageError, match=name):
        Wedlm(**options)


def test_scaled_entropy_without_a_temperature_is_a_usage_error() -> None:
    strategy = WedlmDecoding(MASK, Wedlm(entropy="scaled"))
    with pytest.raises(UsageError, match="temperature"):
        run(Confident(SEQUENCE), strategy, SEQUENCE[:3], 5)
