"""Decode passes in one dispatch choose the same tokens as passes launched phase by phase."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from rdrr_runtime.exec.persistent import executor as executor_module
from rdrr_runtime.exec.persistent.choice import Persistence
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.persistent.residency import find_grid, unsupported
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.sampling.params import SamplingParams
from support.packages import llama_manifest, write_random_package
from support.seeds import generator_of

PROMPT = (5, 9, 1, 7, 20)
ONE = Persistence((Grid(128, 1),), "a test asks for it", polls=1000)
TOKENS = 12


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("persistent")
    return write_random_package(folder, llama_manifest(), generator_of(request))


def _backend(package, device, persistence=None):
    return GpuBackend(package, context=64, device=device, persistence=persistence)


def _decision(backend):
    return [one.kernel for one in backend.info.decisions if one.op == "decode pass"]


def _ids(backend):
    first = backend.greedy(PROMPT, 0, 1)
    return first + backend.greedy(first, len(PROMPT), TOKENS)


def _ids_of(package, device, persistence=None):
    backend = _backend(package, device, persistence)
    try:
        return _ids(backend), _decision(backend)
    finally:
        backend.close()


@pytest.mark.parametrize(("dtype", "layout"), [("Q4_K", "row"), ("F16", "row"), ("Q4_K", "column")])
def test_one_workgroup_chooses_the_tokens_of_the_dispatches(tmp_path, device, dtype, layout, rng):
    manifest = llama_manifest(dtype, layout)
    package = write_random_package(tmp_path, manifest, rng)
    expected, _ = _ids_of(package, device)
    found, decision = _ids_of(package, device, ONE)
    assert decision == ["one dispatch, 1 workgroups of 128 threads"]
    assert found == expected


def test_a_token_takes_one_dispatch(package, device):
    backend = _backend(package, device, ONE)
    try:
        first = backend.greedy(PROMPT, 0, 1)
        before = device.counters.copy()
        backend.greedy(first, len(PROMPT), TOKENS)
        assert device.counters.since(before).dispatches == TOKENS
    finally:
        backend.close()


def test_the_pass_of_a_model_is_linked_once(package, device, monkeypatch):
    linked, link = [], executor_module.link
    monkeypatch.setattr(
        executor_module, "link", lambda *a, **b: linked.append(len(a[0])) or link(*a, **b)
    )
    backend = _backend(package, device, ONE)
    try:
        _ids(backend)
    finally:
        backend.close()
    assert len(linked) == 1  # for the trial, and then for the passes


def test_sampling_is_launched_phase_by_phase(package, device):
    backend = _backend(package, device, ONE)
    try:
        backend.begin(SamplingParams(temperature=0.7, seed=3), PROMPT)
        first = backend.sample(PROMPT, 0, 1)
        before = device.counters.copy()
        backend.sample(first, len(PROMPT), 4)
        assert device.counters.since(before).dispatches > 4
    finally:
        backend.close()


def test_workgroups_that_do_not_meet_are_found_by_the_trial(package, device):
    several = replace(ONE, grids=(Grid(128, 64),), polls=1000)
    expected, _ = _ids_of(package, device)
    found, decision = _ids_of(package, device, several)
    assert decision == ["dispatches"]
    assert found == expected


def test_a_pass_that_waits_for_one_workgroup_too_many_gives_up_and_is_repeated(
    package, device, monkeypatch, caplog
):
    expected, _ = _ids_of(package, device)
    backend = _backend(package, device, ONE)
    link = PersistentExecutor._linked

    def waits_too_long(self, phases):
        linked = link(self, phases)
        changed = linked.source.replace("goal += groups.x;", "goal += groups.x + 1u;")
        assert changed != linked.source
        return replace(linked, source=changed)

    monkeypatch.setattr(PersistentExecutor, "_linked", waits_too_long)
    try:
        with caplog.at_level(logging.WARNING):
            assert _ids(backend) == expected
            assert _ids(backend) == expected
    finally:
        backend.close()
    assert sum("gave up" in one.message for one in caplog.records) == 1


@pytest.mark.parametrize("after", [1, 5])
def test_tokens_after_a_failure_in_the_middle_are_run_again(package, device, after):
    expected, _ = _ids_of(package, device)
    backend = _backend(package, device, ONE)
    try:
        first = backend.greedy(PROMPT, 0, 1)
        feed = backend.feed(first, len(PROMPT))
        feed.submit(after)
        feed.fence()
        gave_up = backend._executor.gave_up
        device.write(gave_up, np.ones(1, np.uint32))
        for _ in range(2):  # two fences are open when the failure is noticed
            feed.submit((TOKENS - after) // 2)
            feed.fence()
        feed.submit(TOKENS - after - (TOKENS - after) // 2 * 2)
        feed.fence()
        found = [one for _ in range(4) for one in feed.collect()[0]]
        assert first + found == expected
        assert backend._executor.gave_up is None
    finally:
        backend.close()


def test_a_software_adapter_is_not_asked_to_wait(device):
    if not device.info.software:
        pytest.skip("the adapter is a GPU")
    assert unsupported(device.features, software=True) is not None
    assert find_grid(device) is None
