"""Keys and values of one cache restored into another, where the sequence continues."""

from __future__ import annotations

import pytest
from rdrr_format.errors import FormatError, GenerationError
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.engine import Engine
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.reference.backend import CpuBackend
from rdrr_runtime.sampling.params import SamplingParams
from support.comparison import relative_error
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    # Three blocks of q8_0 a head, so slots share words of scales.
    manifest = llama_manifest(head_dim=96, **SMALL)
    folder = tmp_path_factory.mktemp("saved")
    return write_random_package(folder, manifest, generator_of(request))


def opened(package, device, dtype: str, context: int):
    if dtype == "cpu":
        return CpuBackend(package, context=context)
    return GpuBackend(package, context=context, kv_dtype=dtype, device=device)


@pytest.mark.cover
@pytest.mark.parametrize(
    "dtype",
    ["cpu", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("f16", "f32")), "q8_0"],
)
def test_a_sequence_continues_in_another_backend_with_another_context(package, device, dtype, rng):
    ids = rng.integers(0, VOCAB, 9).tolist()
    first = opened(package, device, dtype, 48)
    engine = Engine(first, [], VOCAB)
    options = SamplingParams(temperature=1.0, seed=7)
    runs = engine.generate(ids, max_tokens=12, sampling=options)
    whole = [id_ for run in runs for id_ in run]
    runs = engine.generate(ids, max_tokens=5, sampling=options)
    sequence = ids + [id_ for run in runs for id_ in run]
    slots, cache = engine.save_cache(sequence)
    expected = first.logits(sequence[-1:], slots)
    assert slots == len(sequence) - 1  # the last id was never run
    assert slots % 2  # so that a word with two scales of q8_0 is half full
    first.close()
    other = opened(package, device, dtype, 61)
    stats = GenerationStats()
    engine = Engine(other, [], VOCAB)
    engine.load_cache(sequence, slots, cache)
    assert relative_error(other.logits(sequence[-1:], slots), expected) < 1e-5
    on = SamplingParams(temperature=1.0, seed=7, sampled_tokens=5)
    rest = [
        id_
        for run in engine.generate(sequence, max_tokens=7, sampling=on, stats=stats)
        for id_ in run
    ]
    assert sequence[9:] + rest == whole
    assert stats.cached_tokens == slots
    again, _ = engine.save_cache(sequence)
    assert again == len(sequence)
    with pytest.raises(FormatError, match="another model"):
        engine.load_cache(sequence, slots, {**cache, "more": next(iter(cache.values()))})
    with pytest.raises(FormatError, match="another model"):
        engine.load_cache(sequence, slots - 2, cache)
    with pytest.raises(GenerationError, match="longer than the context"):
        engine.load_cache(sequence * 9, slots, cache)
    other.close()
