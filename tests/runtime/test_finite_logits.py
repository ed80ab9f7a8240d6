"""Logits that are no finite numbers end a generation, on every path that chooses tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rdrr_format.errors import GenerationError
from rdrr_manifests.package import Package, open_package
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.packing import EncodedText
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.generation_state import HEADER_WORDS, ROW_WORDS, State
from rdrr_runtime.phases.rows.elementwise import softcap
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax
from rdrr_runtime.phases.sampling.argmax_entropy import PICK_BYTES, argmax_entropy, unpack
from rdrr_runtime.phases.sampling.argmax_entropy import SCRATCH_BYTES as ENTROPY_SCRATCH_BYTES
from rdrr_runtime.phases.sampling.batch_advance import batch_advance
from rdrr_runtime.phases.sampling.sample import sample
from rdrr_runtime.phases.sampling.sample_buffers import SampleBuffers
from rdrr_runtime.records import pack_params, pack_step, searches_of
from rdrr_runtime.sampling.finite import NOT_FINITE, check_ids, check_logits
from rdrr_runtime.sampling.masks import MaskRules
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler
from support.gpu import Bench, normal
from support.packages import SMALL, VOCAB, llama_manifest, replace_first, write_random_package

CONTEXT, WIDTH = 64, 5000
MESSAGE = "logits are not finite numbers"
POLICIES = {
    "f32": {"computePrecision": "f32"},
    "f16": {"computePrecision": "f16"},
    "int8": {"q4kMatmul": "fused_q4k_int8"},
}


def _one_nan(logits: np.ndarray) -> None:
    logits[WIDTH - 3] = np.nan


def _one_negative_nan(logits: np.ndarray) -> None:
    logits[7] = -np.float32(np.nan)


def _one_infinity(logits: np.ndarray) -> None:
    logits[1234] = np.inf


def _all_nan(logits: np.ndarray) -> None:
    logits[:] = np.nan


def _all_ruled_out(logits: np.ndarray) -> None:
    logits[:] = -np.inf


BROKEN = (_one_nan, _one_negative_nan, _one_infinity, _all_nan, _all_ruled_out)


def ring_after_argmax(bench: Bench, logits: np.ndarray) -> tuple[int, int]:
    """Return the id in the ring and the token of the next row."""
    state = bench.context(1).state
    scratch = bench.arena.empty("scratch", SCRATCH_BYTES)
    bench.run(argmax(state, bench.upload(logits), scratch, vocabulary=WIDTH, label="t"), 1)
    return bench.words(state.ring)[0], bench.words(state.step)[HEADER_WORDS]


@pytest.mark.parametrize("break_logits", BROKEN)
def test_the_argmax_marks_its_id_only_in_the_ring(bench, rng, break_logits):
    logits = normal(rng, WIDTH)
    assert ring_after_argmax(bench, logits) == (logits.argmax(), logits.argmax())
    break_logits(logits)
    marked, token = ring_after_argmax(bench, logits)
    assert marked >= NOT_FINITE
    assert token == marked - NOT_FINITE < WIDTH


@pytest.mark.parametrize("break_logits", BROKEN)
@pytest.mark.parametrize("options", [{}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.1}])
def test_a_sample_is_marked(bench, rng, break_logits, options):
    if break_logits is _all_ruled_out:
        pytest.skip("the sampler bounds scores from below, so that masks cannot rule out all")
    params = SamplingParams(temperature=0.8, seed=3, **options)
    state, buffers = State.create(bench.arena, 1, 4), SampleBuffers.create(bench.arena, WIDTH)
    logits = normal(rng, WIDTH)
    for is_broken in (False, True):
        if is_broken:
            break_logits(logits)
        bench.device.write(state.step, pack_step([0], [0]))
        bench.device.write(buffers.params, pack_params(params, 3, masked=False))
        bench.run(sample(buffers, state, bench.upload(logits), searches_of(params), "t"), 1)
        assert (bench.words(state.ring)[0] >= NOT_FINITE) is is_broken
        assert bench.words(state.step)[HEADER_WORDS] < WIDTH


@pytest.mark.parametrize("break_logits", BROKEN)
def test_only_the_rows_of_a_batch_that_are_broken_are_marked(bench, rng, break_logits):
    logits = normal(rng, 3, WIDTH)
    break_logits(logits[1])
    ctx = bench.context(3, tokens=[0] * 3, slots=[4, 5, 6], sequences=[0, 1, 2])
    scratch = bench.arena.empty("scratch", 3 * ENTROPY_SCRATCH_BYTES)
    picks = bench.arena.empty("picks", 3 * PICK_BYTES)
    state = State(ctx.state.step, bench.arena.empty("ring", 4 * 32 * 4))
    phases = argmax_entropy(
        bench.upload(logits), scratch, picks, rows=3, vocabulary=WIDTH, label="t"
    )
    phases += batch_advance(state, picks, rows=3, steps=4, label="t")
    bench.run(phases, 3)
    ids, _ = unpack(bench.device.read(picks))
    assert [id_ >= NOT_FINITE for id_ in ids] == [False, True, False]
    assert bench.words(state.ring)[:3] == ids
    tokens = bench.words(state.step)[HEADER_WORDS::ROW_WORDS]
    assert tokens[:3] == [id_ % NOT_FINITE for id_ in ids]
    check_ids(ids[::2])
    with pytest.raises(GenerationError, match=MESSAGE):
        check_ids(ids)


def test_a_soft_cap_keeps_what_is_not_finite(bench):
    x = bench.upload(np.array([[np.nan, np.inf, -np.inf, 1e9]], np.float32))
    bench.run(softcap(bench.context(1), x, width=4, cap=30.0, label="t"), 1)
    result = bench.download(x, 4)
    assert np.isnan(result[0])
    assert result[1:].tolist() == [np.inf, -np.inf, 30.0]


def _with(manifest: dict, folder: Path, rng: np.random.Generator, values: dict) -> Package:
    """Write a random package in which the first element of some vectors has another value."""
    written = write_random_package(folder, manifest, rng)
    replace_first(folder, values)
    return open_package(written.where)


def _greedy(backend: GpuBackend, ids: list[int]) -> None:
    backend.greedy(ids, 0, 1)


def _decode(backend: GpuBackend, ids: list[int], count: int = 3) -> None:
    feed = backend.feed(ids[:1], 0)
    feed.submit(count)
    feed.fence()
    feed.collect()


def _sample(backend: GpuBackend, ids: list[int]) -> None:
    backend.begin(SamplingParams(temperature=1.0, top_k=20, seed=1), ids)
    backend.sample(ids, 0, 2)


def _sample_masked(backend: GpuBackend, ids: list[int]) -> None:
    backend.begin(SamplingParams(temperature=1.0, seed=1), ids, masked=True)
    mask = np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)
    backend.sample_masked(ids, 0, lambda: mask)


def _window(backend: GpuBackend, ids: list[int]) -> None:
    backend.window_picks(ids, 0, last_n=2)


def _batch(backend: GpuBackend, ids: list[int], *, sampled: bool = False) -> None:
    batch = backend.batch(2, CONTEXT)
    rows = [Row(ids[0], 0, 0), Row(ids[1], 1, 0)]
    if sampled:
        for sequence in (0, 1):
            batch.begin(sequence, SamplingParams(temperature=1.0, seed=1), ids[:1])
    (batch.sample if sampled else batch.greedy)(rows, 2)


CALLS: dict[str, Callable[[GpuBackend, list[int]], None]] = {
    "prompt": _greedy,
    "feed": _decode,
    "sampled": _sample,
    "masked": _sample_masked,
    "window": _window,
    "batch": _batch,
    "sampled batch": partial(_batch, sampled=True),
}


ROUNDED = [pytest.param(policy, marks=pytest.mark.thorough) for policy in ("f16", "int8")]


@pytest.mark.parametrize("policy", ["f32", *ROUNDED])
def test_a_broken_weight_ends_every_way_of_choosing_tokens(device, tmp_path, rng, policy):
    ids = rng.integers(0, VOCAB, 12).tolist()
    backend = _backend(
        device, policy, tmp_path, rng, {"model.layers.0.input_layernorm.weight": np.nan}
    )
    assert [name for name, call in CALLS.items() if not _refuses(call, backend, ids)] == []
    backend.close()


def test_a_sound_model_is_never_refused(device, tmp_path, rng):
    ids = rng.integers(0, VOCAB, 12).tolist()
    backend = _backend(device, "f32", tmp_path, rng, {})
    assert [name for name, call in CALLS.items() if _refuses(call, backend, ids)] == []
    backend.close()


def _logits(backend: GpuBackend, ids: list[int], *, all_rows: bool = False) -> None:
    backend.logits(ids, 0, all_rows=all_rows)


def _decoded_logits(backend: GpuBackend, ids: list[int]) -> None:
    for base, token in enumerate(ids):
        backend.logits([token], base)


def _hidden(backend: GpuBackend, ids: list[int]) -> None:
    list(backend.hidden([EncodedText(ids)]))


def _window_logits(backend: GpuBackend, ids: list[int]) -> None:
    backend.window_logits(ids, 0, last_n=2)


def _filled_masks(backend: GpuBackend, ids: list[int]) -> None:
    backend.fill(ids, 0)
    feed = backend.mask_feed(len(ids), MaskRules(7, 4, None), 6)
    feed.submit()
    feed.collect()


READS: dict[str, Callable[[GpuBackend, list[int]], None]] = {
    "logits": _logits,
    "logits of all rows": partial(_logits, all_rows=True),
    "logits of decode passes": _decoded_logits,
    "hidden states": _hidden,
    "logits of a window": _window_logits,
    "filled masks": _filled_masks,
}
TIMES = {"f16": 1, "f32": 1, "q8_0": 127}
"""How much larger a number a cache holds than f16, or at least."""


@pytest.mark.cover
@pytest.mark.parametrize("dtype", ["f16", pytest.param("f32", marks=pytest.mark.thorough), "q8_0"])
def test_a_token_whose_keys_are_beyond_the_range_of_the_cache_ends_every_call(
    device, tmp_path, rng, dtype
):
    backend = _with_a_large_token(device, tmp_path, rng, dtype)
    large, sound = [0] * 4, rng.integers(1, VOCAB, 12).tolist()
    calls = {**CALLS, **READS}
    if dtype != "f16":
        calls = {name: calls[name] for name in ("prompt", "feed", "logits")}
    message = f"layer 0: the keys are beyond the range of a key-value cache in {dtype}"
    expected = list(calls) if dtype != "f32" else []
    ids, before = large + sound[:8], backend.logits(sound, 0)
    refused = [name for name, call in calls.items() if _refuses(call, backend, ids, message)]
    assert refused == expected
    # What the sequence has left behind in later slots does no harm.
    # Calls that run what they have chosen are left out: the model may choose token 0 itself.
    choosing = {"feed", "sampled", "masked", "batch", "sampled batch"}
    others = [call for name, call in calls.items() if name not in choosing]
    assert not any(_refuses(call, backend, sound, "") for call in others)
    assert np.array_equal(backend.logits(sound, 0), before)
    backend.close()


def test_the_error_says_how_large_the_keys_are_and_which_cache_holds_them(device, tmp_path, rng):
    backend = _with_a_large_token(device, tmp_path, rng, "f16")
    with pytest.raises(GenerationError) as caught:
        backend.greedy([5, 0, 6], 0, 1)
    backend.close()
    assert caught.value.expected == "at most 65,504"
    assert float(caught.value.found.removesuffix(" or more").replace(",", "")) < 1e6
    assert "`kv_dtype` f32" in caught.value.hint


@pytest.mark.thorough
def test_a_decode_pass_in_one_dispatch_refuses_it_too(device, tmp_path, rng):
    wanted = Persistence((Grid(128, 1),), "a test asks for it", polls=1000)
    backend = _with_a_large_token(device, tmp_path, rng, "f16", wanted)
    message = "layer 0: the keys are beyond the range"
    decode = partial(_decode, count=1)  # the next token may be the large one by chance
    refused = [_refuses(decode, backend, [token], message) for token in (5, 0, 5)]
    assert refused == [False, True, False]
    backend.close()


def _with_a_large_token(
    device, folder: Path, rng: np.random.Generator, dtype: str, wanted: Persistence | None = None
) -> GpuBackend:
    """Return a model in which only token 0 has keys and values beyond the range of a cache.

    The norm of the first layer enlarges the first element, of which token 0 consists. Its keys are
    about 10 times as large as those of an average token.
    """
    values = {
        "model.embed_tokens.weight": 5.0,
        "model.layers.0.input_layernorm.weight": 3e4 * TIMES[dtype],
    }
    package = _with(llama_manifest("F32", embedding="F32", **SMALL), folder, rng, values)
    hints = resolve({"run flag": POLICIES["f32"]})
    return GpuBackend(
        package, context=CONTEXT, device=device, policy=hints, kv_dtype=dtype, persistence=wanted
    )


def _backend(
    device, policy: str, folder: Path, rng: np.random.Generator, values: dict
) -> GpuBackend:
    package = _with(llama_manifest(**SMALL), folder, rng, values)
    hints = resolve({"run flag": POLICIES[policy]})
    return GpuBackend(package, context=CONTEXT, device=device, policy=hints)


def _refuses(
    call: Callable[[GpuBackend, list[int]], None],
    backend: GpuBackend,
    ids: list[int],
    message: str = MESSAGE,
) -> bool:
    try:
        call(backend, ids)
    except GenerationError as error:
        return message in str(error)
    return False


@pytest.mark.parametrize(("policy", "is_refused"), [("f16", True), ("f32", False)])
def test_a_model_that_overflows_is_refused_in_f16_only(device, tmp_path, rng, policy, is_refused):
    values = {"model.layers.0.post_attention_layernorm.weight": 1e9}
    backend = _backend(device, policy, tmp_path, rng, values)
    ids = rng.integers(0, VOCAB, 9).tolist()
    assert all(_refuses(run, backend, ids) is is_refused for run in (_greedy, _decode))
    backend.close()


@pytest.mark.parametrize("break_logits", BROKEN)
def test_the_host_refuses_them_too(rng, break_logits):
    logits = normal(rng, 2, WIDTH)
    logits[0, 5] = -np.inf
    check_logits(logits)
    Sampler(SamplingParams(temperature=1.0, seed=1)).choose(logits[1])
    break_logits(logits[1])
    with pytest.raises(GenerationError, match=MESSAGE):
        check_logits(logits)
    with pytest.raises(GenerationError, match=MESSAGE):
        Sampler(SamplingParams(temperature=1.0, seed=1)).choose(logits[1])
