"""WeDLM's decoding, held to its definition in NumPy on the CPU and on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.backend import Backend, BackendInfo
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.decode.wedlm import Wedlm, WedlmDecoding
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error
from support.packages import VOCAB, llama_manifest, write_random_package
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
"""Window, tau, lambda, most masks filled in a pass: from one token a pass to a window a pass."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wedlm")
    manifest = llama_manifest("F32", embedding="F32")
    return write_random_package(folder, manifest, np.random.default_rng())


@pytest.fixture(scope="module")
def on_cpu(package) -> CpuBackend:
    return CpuBackend(package, context=CONTEXT)


@pytest.fixture(scope="module")
def on_gpu(device, package) -> Iterator[GpuBackend]:
    made = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    yield made
    made.close()


def run(
    backend: Backend,
    strategy: WedlmDecoding,
    prompt: Sequence[int],
    max_tokens: int,
    stops=(),
    **options,
) -> tuple[list[list[int]], GenerationStats]:
    stats = GenerationStats()
    engine = Engine(backend, stops, backend.vocab if isinstance(backend, Sure) else VOCAB)
    runs = engine.generate(prompt, max_tokens=max_tokens, stats=stats, strategy=strategy, **options)
    return list(runs), stats


def joined(runs: list[list[int]]) -> list[int]:
    return [token_id for ids in runs for token_id in ids]


def defined(package, rng, setting, max_tokens: int, stops=()) -> tuple[list[int], Result]:
    """A prompt and what the definition makes of it, no decision of which hangs on rounding."""
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
    raise AssertionError("every prompt hangs on rounding")


CASES = [*(("on_cpu", one) for one in SETTINGS), ("on_gpu", SETTINGS[2]), ("on_gpu", SETTINGS[5])]


@pytest.mark.parametrize(("where", "setting"), CASES)
def test_every_pass_is_that_of_the_definition(request, package, rng, where, setting):
    window, tau, slope, cap = setting
    prompt, expected = defined(package, rng, setting, 16)
    strategy = WedlmDecoding(MASK, Wedlm(window, tau, slope, cap))
    runs, stats = run(request.getfixturevalue(where), strategy, prompt, 16)
    assert [one for one in expected.committed if one] == runs
    assert stats.counts.forwards == len(expected.rows)
    assert stats.counts.rows == sum(expected.rows) <= 2 * window * stats.counts.forwards
    assert stats.counts.wasted_rows == stats.counts.rows - 16
    assert stats.tokens_per_forward == pytest.approx(16 / len(expected.rows))
    assert stats.finish == "length"
    if tau is None:
        assert set(expected.filled) == {1}
        assert stats.counts.forwards == 16 + 1  # each fills one, and the last commits what is left


@pytest.mark.parametrize("where", ["on_cpu", "on_gpu"])
def test_what_is_committed_is_in_the_cache_as_if_it_were_the_prompt(request, rng, where):
    backend = request.getfixturevalue(where)
    prompt = rng.integers(0, VOCAB, 6).tolist()
    runs, _ = run(backend, WedlmDecoding(MASK, Wedlm(tau=4.2)), prompt, 20)
    text = [*prompt, *(one for ids in runs for one in ids)]
    assert len(text) == 26
    left = backend.logits([3], 26)
    fresh = backend.logits([*text, 3], 0)
    assert relative_error(left, fresh) < CLOSE
    swapped = [*text[:10], text[10] ^ 1, *text[11:], 3]
    assert relative_error(left, backend.logits(swapped, 0)) > CLOSE  # the control


def test_sampling_at_almost_no_temperature_takes_the_most_probable(on_cpu, package, rng):
    prompt, expected = defined(package, rng, SETTINGS[2], 12)
    options = Wedlm(8, 4.1)
    strategy = WedlmDecoding(MASK, options)
    cold = SamplingParams(temperature=1e-4, seed=1)
    assert joined(run(on_cpu, strategy, prompt, 12, sampling=cold)[0]) == expected.ids
    warm = SamplingParams(temperature=1.5, seed=1)
    once, again = (joined(run(on_cpu, strategy, prompt, 12, sampling=warm)[0]) for _ in range(2))
    assert once == again != expected.ids


def test_the_entropy_over_the_temperature_fills_more_when_it_is_low(on_cpu, rng):
    prompt = rng.integers(0, VOCAB, 6).tolist()
    passes = []
    cold = SamplingParams(temperature=0.1, seed=1)
    for entropy in ("raw", "scaled"):
        strategy = WedlmDecoding(MASK, Wedlm(8, 1.0, 0.0, entropy=entropy))
        _, stats = run(on_cpu, strategy, prompt, 24, sampling=cold)
        passes.append(stats.counts.forwards)
    assert passes[1] < passes[0]


class Sure:
    """Knows the token of every place and is sure of all but some places' masks."""

    vocab = 64

    def __init__(self, text: Sequence[int], unsure: Sequence[int] = (), context: int = 100) -> None:
        self.info = BackendInfo("fake", None, context, 0, 0)
        self.text, self.unsure = list(text), set(unsure)
        self.slots = 0

    def fill(self, ids: Sequence[int], base: int) -> None:
        self.slots = base + len(ids)

    def window_picks(self, ids, base, *, wanted, positions):
        assert base <= self.slots, "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context
        known = len(ids) - wanted
        places = [*positions[:known]], [*positions[known:]]
        assert all(part == sorted(part) for part in places)
        assert [ids[at] for at in range(known)] == [self.text[at] for at in places[0]]
        self.slots = base + len(ids)
        entropy = [5.0 if at in self.unsure else 0.1 for at in places[1]]
        return [self.text[at] for at in places[1]], np.array(entropy, np.float32)


TEXT = list(range(40, 60)) + list(range(20, 40))


@pytest.mark.parametrize("window", [1, 2, 5, 16])
@pytest.mark.parametrize("ends_at", [3, 4, 9, 10])
def test_a_text_ends_at_its_stop_wherever_that_is_in_a_commit(window: int, ends_at: int) -> None:
    runs, stats = run(
        Sure(TEXT, unsure=[5, 8]),
        WedlmDecoding(MASK, Wedlm(window)),
        TEXT[:3],
        30,
        stops=[TEXT[ends_at]],
    )
    assert joined(runs) == TEXT[3 : ends_at + 1]
    assert stats.finish == "stop"


def test_a_stop_that_is_not_committed_yet_does_not_end_the_text() -> None:
    """The place after a gap is filled first; its stop counts when the gap is closed."""
    backend = Sure(TEXT, unsure=[4])
    runs, stats = run(backend, WedlmDecoding(MASK, Wedlm(4)), TEXT[:3], 30, stops=[TEXT[5]])
    assert runs == [[TEXT[3]], [TEXT[4], TEXT[5]]]
    # The last of the first four is filled, then the one that was added, the gap, and it is closed.
    assert stats.counts.forwards == 4


def test_a_model_that_writes_the_mask_token_goes_on() -> None:
    text = [*TEXT[:5], MASK, MASK, *TEXT[7:]]
    runs, _ = run(Sure(text), WedlmDecoding(MASK, Wedlm(4)), text[:3], 10)
    assert joined(runs) == text[3:13]


def test_nothing_is_looked_at_beyond_max_tokens_or_the_context() -> None:
    runs, stats = run(Sure(TEXT, context=12), WedlmDecoding(MASK, Wedlm(16)), TEXT[:3], 30)
    assert joined(runs) == TEXT[3:12]
    assert stats.finish == "context"
    assert stats.counts.rows == 2 * 9  # each place once as a mask and once filled
    with pytest.raises(GenerationError, match="no room"):
        run(Sure(TEXT, context=3), WedlmDecoding(MASK), TEXT[:3], 30)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"window": 0}, "window"),
        ({"tau": -0.1}, "tau"),
        ({"slope": -1.0}, "slope"),
        ({"max_per_step": 0}, "max_per_step"),
    ],
)
def test_an_option_out_of_range_is_wrong_usage(options, name) -> None:
    with pytest.raises(UsageError, match=name):
        Wedlm(**options)


def test_an_entropy_scaled_by_no_temperature_is_wrong_usage() -> None:
    strategy = WedlmDecoding(MASK, Wedlm(entropy="scaled"))
    with pytest.raises(UsageError, match="temperature"):
        run(Sure(TEXT), strategy, TEXT[:3], 5)
