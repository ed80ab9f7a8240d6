"""A process that decodes for long moves to one dispatch a pass if that is faster."""

from __future__ import annotations

import logging
from contextlib import closing

import numpy as np
import pytest
from rdrr_device.device import Device
from rdrr_format.errors import DeviceError, FormatError
from rdrr_runtime.backend import Row
from rdrr_runtime.compile.choice.hints import SOURCES, resolve
from rdrr_runtime.exec.persistent import comparing, modules
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.declarations import UnlinkableError
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.sampling.params import SamplingParams
from support.masks import packed
from support.packages import SMALL, VOCAB, llama_manifest, write_random_package

PROMPT = (5, 9, 1, 7, 20)
INT8 = {"q4kMatmul": "fused_q4k_int8"}
GROUP, GROUPS = 6, 4
SLOWER = pytest.param(False, marks=pytest.mark.thorough)  # `test_the_faster_way_stays` has it
COMPARES = Persistence((Grid(128, 1),), "a test asks for it", polls=1000, compares=True)


def _finish_builds(executor):
    """Wait for the kernels that an executor is compiling."""
    for comparison in executor._comparisons.values():
        if comparison.is_building:
            executor._candidate.finish_build(comparison.token_pass)


def _decoded(package, device, persistence, *, settles=False):
    """Return the ids of some groups of tokens, and the dispatches of a token of the last group."""
    with closing(
        GpuBackend(package, context=64, device=device, persistence=persistence)
    ) as backend:
        ids, slot = backend.greedy(PROMPT, 0, 1), len(PROMPT)
        if settles:
            ids, slot = ids + backend.greedy(ids[-1:], slot, 1), slot + 1
            backend.settle()
        for _ in range(GROUPS):
            before = device.counters.copy()
            ids += backend.greedy(ids[-1:], slot, GROUP)
            slot += GROUP
            if persistence is not None and not settles:
                _finish_builds(backend._executor)
        return ids, device.counters.since(before).dispatches / GROUP


@pytest.fixture(scope="module")
def expected(package, device):
    return _decoded(package, device, None)


@pytest.mark.cover
@pytest.mark.parametrize("is_faster", [True, False])
def test_the_faster_way_stays(package, device, expected, monkeypatch, is_faster):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    monkeypatch.setattr(comparing, "better", lambda *_: is_faster)
    ids, dispatches = _decoded(package, device, COMPARES)
    assert ids == expected[0]
    assert dispatches == (1 if is_faster else expected[1])


def _sampled(package, device, persistence):
    """Return the ids of two generations that sample, and the dispatches of a token of the second.

    They sample in different ways, so the phases behind the logits differ.
    """
    ids, counts = [], []
    backend = GpuBackend(package, context=64, device=device, persistence=persistence)
    with closing(backend):
        for options in (
            SamplingParams(temperature=1.5, seed=3),
            SamplingParams(temperature=1.5, top_k=40, frequency_penalty=0.5, seed=4),
        ):
            backend.begin(options, PROMPT)
            ids += backend.sample(PROMPT, 0, 1)
            ids += backend.sample(ids[-1:], len(PROMPT), GROUP)
            if persistence is not None and not counts:
                backend._executor.settle()
            before = device.counters.copy()
            ids += backend.sample(ids[-1:], len(PROMPT) + GROUP, GROUP)
            counts.append(device.counters.since(before).dispatches / GROUP)
        decode = backend._plan.decode.lowered
        return ids, counts, len(decode.body) + len(decode.head)


@pytest.mark.parametrize("is_faster", [True, SLOWER])
def test_one_comparison_holds_for_all_ways_to_sample(package, device, monkeypatch, is_faster):
    monkeypatch.setattr(comparing, "better", lambda *_: is_faster)
    expected, launched, phases = _sampled(package, device, None)
    ids, counts, _ = _sampled(package, device, COMPARES)
    assert ids == expected
    saved = phases - 1 if is_faster else 0
    assert counts == [count - saved for count in launched]


@pytest.mark.parametrize("is_faster", [True, SLOWER])
def test_tokens_of_a_constraint_run_the_faster_way_too(package, device, monkeypatch, is_faster):
    monkeypatch.setattr(comparing, "better", lambda *_: is_faster)
    counts, every = [], packed(np.ones(VOCAB, bool))
    with closing(GpuBackend(package, context=64, device=device, persistence=COMPARES)) as backend:
        expected = backend.greedy(PROMPT, 0, 1)
        expected += backend.greedy(expected, len(PROMPT), GROUP - 1)
        backend.begin(SamplingParams(temperature=0.0), PROMPT, masked=True)
        ids = backend.sample_masked(PROMPT, 0, lambda: every)
        for turn in range(GROUP - 1):
            if turn == GROUP // 2:
                backend._executor.settle()
            before = device.counters.copy()
            ids += backend.sample_masked(ids[-1:], len(PROMPT) + turn, lambda: every)
            counts.append(device.counters.since(before).dispatches)
        decode = backend._plan.decode.lowered
    assert ids == expected
    saved = len(decode.body) + len(decode.head) - 1 if is_faster else 0
    assert counts[0] - counts[-1] == saved


def test_steps_of_several_sequences_are_compared_for_each_number_of_rows(
    tmp_path, device, rng, monkeypatch
):
    package = write_random_package(tmp_path, llama_manifest(**SMALL, embedding="Q4_K"), rng)
    monkeypatch.setattr(comparing, "better", lambda *_: True)
    ids, dispatches = {}, {}
    for way in (None, COMPARES):
        backend = GpuBackend(
            package, context=64, device=device, persistence=way, policy=resolve({SOURCES[0]: INT8})
        )
        with closing(backend):
            batch = backend.batch(4, 64)
            for rows in (2, 4, 2):
                first = [Row(3 + at, at, 0) for at in range(rows)]
                before = device.counters.copy()
                ids.setdefault(way, []).append(batch.greedy(first, GROUP))
                dispatches[way, rows] = device.counters.since(before).dispatches / GROUP
                if rows == 2:
                    batch.settle()
    assert ids[COMPARES] == ids[None]
    assert dispatches[COMPARES, 2] == 4  # one, and three of the picks
    assert dispatches[COMPARES, 4] == dispatches[None, 4]  # nothing was compared yet


@pytest.mark.thorough
def test_a_sequence_alone_in_a_batch_is_compared_by_itself(package, device, monkeypatch):
    monkeypatch.setattr(comparing, "better", lambda *_: True)
    dispatches = []
    with closing(GpuBackend(package, context=64, device=device, persistence=COMPARES)) as backend:
        expected = backend.greedy(PROMPT, 0, 1)
        expected += backend.greedy(expected, len(PROMPT), GROUP)
        batch, slot = backend.batch(2, 64), len(PROMPT) - 1
        batch.fill([Row(id_, 1, at) for at, id_ in enumerate(PROMPT[:-1])])
        ids = batch.greedy([Row(PROMPT[-1], 1, slot)], 1)[0]
        for _ in range(2):
            before = device.counters.copy()
            ids += batch.greedy([Row(ids[-1], 1, len(PROMPT) + len(ids) - 1)], GROUP // 2)[0]
            dispatches.append(device.counters.since(before).dispatches / (GROUP // 2))
            batch._executor.settle()
        assert backend._executor is not batch._executor
    assert ids == expected
    assert dispatches[1] == 1 < dispatches[0]


def test_a_short_generation_compiles_nothing_else(package, device, expected, monkeypatch):
    monkeypatch.setattr(comparing.ComparingExecutor, "_begin", lambda *_: pytest.fail("it began"))
    ids, dispatches = _decoded(package, device, COMPARES)
    assert (ids, dispatches) == expected


def test_settling_chooses_at_once(package, device, expected, monkeypatch):
    monkeypatch.setattr(comparing, "better", lambda *_: True)
    ids, dispatches = _decoded(package, device, COMPARES, settles=True)
    assert dispatches == 1
    assert ids[:-1] == expected[0]


def test_other_logits_rule_one_dispatch_out(package, device, expected, monkeypatch, caplog):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    monkeypatch.setattr(comparing, "better", lambda *_: True)
    monkeypatch.setattr(comparing, "INT8_TOLERANCE", -1.0)
    with caplog.at_level(logging.INFO):
        assert _decoded(package, device, COMPARES) == expected
    assert sum("differ by" in record.message for record in caplog.records) == 1


def _raises(error):
    def raising(*_, **__):
        raise error

    return raising


def test_a_fault_of_the_linker_does_not_end_a_generation(
    package, device, expected, monkeypatch, caplog
):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    monkeypatch.setattr(modules, "link", _raises(KeyError("y")))
    with caplog.at_level(logging.WARNING):
        assert _decoded(package, device, COMPARES) == expected
    assert sum("could not be linked" in record.message for record in caplog.records) == 1


def test_a_clock_that_is_too_coarse_leaves_everything_as_it_is(
    package, device, expected, monkeypatch
):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    too_coarse = _raises(DeviceError("the timestamps are too coarse"))
    monkeypatch.setattr(comparing.InterleavedTimer, "interleaved", too_coarse)
    assert _decoded(package, device, COMPARES) == expected


def test_a_pass_that_cannot_be_lowered_for_a_grid_stays_as_it_is(
    package, device, expected, monkeypatch
):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    lower = Plan.lower

    def refuses_grids(self, *arguments, grid=None, **others):
        if grid is not None:
            raise FormatError("a test refuses grids")
        return lower(self, *arguments, **others)

    monkeypatch.setattr(Plan, "lower", refuses_grids)
    assert _decoded(package, device, COMPARES) == expected
    assert _decoded(package, device, COMPARES, settles=True)[1] == expected[1]


@pytest.mark.parametrize("pays", [False, True])
def test_a_pass_for_which_one_dispatch_does_not_pay_is_not_compiled(
    package, device, expected, monkeypatch, pays
):
    """Compiling takes seconds, in which the pass is slower."""
    compiled: list[str] = []
    build_ahead = Device.build_ahead

    def remembers(self, kernels):
        given = tuple(kernels)
        compiled.extend(kernel.label for kernel in given)
        build_ahead(self, given)

    monkeypatch.setattr(comparing, "PASSES", GROUP)
    monkeypatch.setattr(comparing, "better", lambda *_: False)
    if not pays:
        monkeypatch.setattr(modules, "check_waits", _raises(UnlinkableError("it does not pay")))
    monkeypatch.setattr(Device, "build_ahead", remembers)
    assert _decoded(package, device, COMPARES) == expected
    assert ("persistent" in compiled) is pays


@pytest.mark.thorough
def test_workgroups_that_do_not_meet_rule_it_out(package, device, expected, monkeypatch):
    monkeypatch.setattr(comparing, "PASSES", GROUP)
    several = Persistence((Grid(128, 64),), "a test asks for it", polls=1000, compares=True)
    assert _decoded(package, device, several) == expected


def test_a_pass_that_gives_up_later_is_launched_again(package, device, expected, monkeypatch):
    monkeypatch.setattr(comparing, "better", lambda *_: True)
    with closing(GpuBackend(package, context=64, device=device, persistence=COMPARES)) as backend:
        ids = backend.greedy(PROMPT, 0, 1)
        ids += backend.greedy(ids, len(PROMPT), 1)
        backend.settle()
        backend._executor.recover()
        before = device.counters.copy()
        ids += backend.greedy(ids[-1:], len(PROMPT) + 1, GROUP)
        assert device.counters.since(before).dispatches == GROUP * expected[1]
    assert ids == expected[0][: len(ids)]
