"""The submitters of the modes: exact counters, and the same token ids in all modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pytest
from published.modes.op_calls import WgpuCalls, uniform_content
from published.modes.submission import OURS, ModeSubmitter, Submission, Submitters, op_calls
from published.strategies.greedy_on_host import GreedyOnHost
from rdrr_device import pass_timer
from rdrr_device.pass_timer import PassTimer, timed
from rdrr_format.errors import DeviceError
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.rows.copy import copy
from rdrr_runtime.phases.rows.elementwise import scale
from support.comparison import relative_error
from support.decoding import (
    Ending,
    decode_dispatches,
    endless_prompt,
    generated,
    prompt,
)
from support.packages import CONTEXT, llama_manifest, write_random_package
from support.seeds import generator_of

PER_OP = Submission(submit_per_op=True)
RECREATED = Submission(uniforms="fresh", fresh_bind_groups=True, fresh_staging=True)
FRESH = Submission(submit_per_op=True, uniforms="fresh", fresh_bind_groups=True, fresh_staging=True)
CACHED = Submission(
    submit_per_op=True, uniforms="cached", fresh_bind_groups=True, fresh_staging=True
)
PUBLISHED = {"per op": PER_OP, "recreated": RECREATED, "fresh": FRESH, "cached": CACHED}
ALL = {"ours": OURS, **PUBLISHED}
APIS = ("native", "public")


@pytest.fixture(scope="module")
def backend(request, device, tmp_path_factory) -> Iterator[GpuBackend]:
    folder = tmp_path_factory.mktemp("submission")
    package = write_random_package(folder, llama_manifest(), generator_of(request))
    gpu_backend = GpuBackend(package, context=CONTEXT, kv_dtype="f32", device=device)
    gpu_backend.greedy(gpu_backend.greedy([1, 2], 0, 1), 2, 1)  # compiles all kernels
    yield gpu_backend
    gpu_backend.close()


def submitting(
    backend: GpuBackend, how: Submission, api: str = "native"
) -> AbstractContextManager[None]:
    """Return a context with the submission of a mode, with native calls or the public API."""
    handle = backend.device.handle
    if how == OURS:
        return Submitters(backend.device).submitting(how)
    calls = op_calls(handle) if api == "native" else WgpuCalls(handle.wgpu)
    return backend.device.submitting(ModeSubmitter(handle, how, calls))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("api", APIS)
def test_the_counters_of_each_mode_are_exactly_those_of_its_switches(
    backend, rng, name, interval, api
):
    how, ids = ALL[name], prompt(rng, 5)
    bound = decode_dispatches(backend)
    with submitting(backend, how, api):
        last = backend.greedy(backend.greedy(ids, 0, 1), 5, 1)
        before = backend.device.counters.copy()
        backend.greedy(last, 6, interval)
        work = backend.device.counters.since(before)
    ops = len(bound) * interval
    assert work.dispatches == ops
    assert work.submits == (ops if how.submit_per_op else interval) + 1
    assert work.maps == 1
    assert work.bytes_read == 4 * interval
    assert work.bind_group_creates == (ops if how.fresh_bind_groups else 0)
    assert work.uniform_creates == (ops if how.uniforms == "fresh" else 0)
    assert work.uniform_hits == (ops if how.uniforms == "cached" else 0)
    assert work.buffer_creates == work.uniform_creates + how.fresh_staging
    written = interval * sum(uniform_content(dispatch, 1).nbytes for dispatch in bound)
    assert work.bytes_written == (written if how.uniforms == "fresh" else 0)
    assert work.pipeline_creates == 0


@pytest.mark.thorough
def test_the_uniform_cache_creates_one_buffer_for_each_content_and_reuses_it(backend, rng):
    contents = {uniform_content(dispatch, 1).tobytes() for dispatch in decode_dispatches(backend)}
    assert len(contents) < len(decode_dispatches(backend))  # layers have equal contents
    first = backend.greedy(prompt(rng, 5), 0, 1)
    submitters, how = Submitters(backend.device), Submission(uniforms="cached")
    for created in (len(contents), 0):
        with submitters.submitting(how):
            before = backend.device.counters.copy()
            backend.greedy(first, 5, 3)
            work = backend.device.counters.since(before)
        assert work.uniform_creates == created
        assert work.uniform_hits == work.dispatches - created


@pytest.mark.thorough
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_both_apis_compute_the_same_logits_in_every_mode(backend, rng, name, api):
    ids = prompt(rng, 5)
    plain = backend.logits(ids, 0)
    assert not np.array_equal(plain, backend.logits(ids[:-1], 0))  # the control
    with submitting(backend, PUBLISHED[name], api):
        assert np.array_equal(backend.logits(ids, 0), plain)


@pytest.mark.thorough
def test_the_installed_wgpu_py_allows_native_calls(backend):
    assert not isinstance(op_calls(backend.device.handle), WgpuCalls)


@pytest.mark.parametrize("name", ["per op", "fresh"])
def test_invalid_commands_raise_an_error_in_every_mode(bench, name):
    x = bench.poisoned(64)
    wrong = copy(x, x, label="wrong")
    right = scale(bench.context(1), x, width=64, factor=2.0, label="right")
    with Submitters(bench.device).submitting(PUBLISHED[name]):
        with pytest.raises(DeviceError, match="conflicting usages"):
            bench.run(wrong, 1)
        bench.device.write(x, np.ones(64, np.float32))
        bench.run(right, 1)  # the failure leaves nothing behind
    assert np.array_equal(bench.download(x, 64), np.full(64, 2.0, np.float32))


@pytest.mark.parametrize("name", ALL)
def test_every_mode_leaves_out_a_dispatch_that_does_not_serve_the_rows(bench, name):
    x = bench.poisoned(64)
    bench.device.write(x, np.ones(64, np.float32))
    (double,) = scale(bench.context(1), x, width=64, factor=2.0, label="double")
    with Submitters(bench.device).submitting(ALL[name]):
        for limits, ran in (({"above": 1}, 0), ({"up_to": 1}, 1)):
            before = bench.device.counters.dispatches
            bench.run([replace(double, work=replace(double.work, **limits))], 1)
            assert bench.device.counters.dispatches - before == ran
            assert np.array_equal(bench.download(x, 64), np.full(64, 2.0**ran, np.float32))


@pytest.mark.thorough
def test_every_mode_generates_the_same_ids_and_stops_at_the_end_of_the_sequence(backend, rng):
    ids, stops = endless_prompt(backend, rng, 6), frozenset({Ending.EOS})
    plain, _ = generated(backend, GreedyOnHost(), ids, 10, frozenset())
    ended, _ = generated(Ending(backend, len(ids) + 5), GreedyOnHost(), ids, 10, stops)
    assert ended == [*plain[:5], Ending.EOS]
    for how, end in ((PER_OP, 2), (FRESH, 3), (CACHED, 5)):
        with submitting(backend, how):
            ids_until_end, _ = generated(
                Ending(backend, len(ids) + end), Autoregressive(4), ids, 9, stops
            )
        assert ids_until_end == [*plain[:end], Ending.EOS]


@pytest.mark.thorough
def test_after_an_early_end_the_next_prompt_equals_a_fresh_run(backend, rng):
    ids, turn = endless_prompt(backend, rng, 7), prompt(rng, 4)
    ending = Ending(backend, len(ids) + 3)
    with submitting(backend, CACHED):
        delivered, counts = generated(ending, Autoregressive(8), ids, 17, frozenset({Ending.EOS}))
        assert (len(delivered), counts.wasted) == (4, 5)
        text = [*ids, *delivered]
        # The last id has not been run yet, so it is the first of the next prompt.
        second = backend.logits([delivered[-1], *turn], len(text) - 1)
        fresh = backend.logits([*text, *turn], 0)
        other = backend.logits([*text[:-1], *turn], 0)
    assert relative_error(second, fresh) < 1e-5
    assert relative_error(other, fresh) > 1e-3  # the control


@pytest.mark.thorough
def test_a_small_timer_collects_only_between_submissions(backend, rng, monkeypatch):
    device, first = backend.device, backend.greedy(prompt(rng, 5), 0, 1)
    ops = len(decode_dispatches(backend))
    collected = []
    monkeypatch.setattr(pass_timer, "PASSES", ops + 1)
    resolve = PassTimer._resolve
    monkeypatch.setattr(
        PassTimer, "_resolve", lambda self: (collected.append(self._pending), resolve(self))
    )
    with submitting(backend, Submission(pass_per_op=True)), timed(device) as timer:
        backend.greedy(first, 5, 3)
        assert timer.collect() > 0
    assert collected == [ops, ops, ops]  # whole tokens, although one more pass would have fit
    monkeypatch.setattr(pass_timer, "PASSES", ops - 1)
    with (
        submitting(backend, Submission(pass_per_op=True)),
        timed(device),
        pytest.raises(DeviceError, match="too many passes"),
    ):
        backend.greedy(first, 5, 1)
