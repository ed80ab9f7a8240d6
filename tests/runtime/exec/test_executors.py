"""The phases of a pass give the same results with every executor."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from rdrr_runtime.exec.executor import DispatchExecutor
from rdrr_runtime.gpu import GpuBackend
from support.looping import LoopingExecutor

PROMPT = tuple(range(5, 45))


def _run(package, device, executor, groups=3):
    executor_of = (
        executor if executor is DispatchExecutor else lambda chunk: LoopingExecutor(chunk, groups)
    )
    with closing(GpuBackend(package, context=64, device=device, executor=executor_of)) as backend:
        logits = backend.logits(PROMPT, 0)
        return logits, backend.greedy([int(logits.argmax())], len(PROMPT), 8)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_results_do_not_depend_on_the_items_per_workgroup(package, device, groups):
    expected, ids = _run(package, device, DispatchExecutor)
    logits, again = _run(package, device, LoopingExecutor, groups)
    np.testing.assert_array_equal(logits, expected)
    assert again == ids


def test_a_phase_is_bound_once_however_often_it_is_prepared(bench, device):
    from rdrr_runtime.phases.rows.copy import copy

    executor = DispatchExecutor(device)
    phases = copy(bench.poisoned(64), bench.poisoned(64), label="copy")
    first = executor.prepare(phases)
    before = device.counters.copy()
    assert executor.prepare([*phases, *phases]) == (*first, *first)
    assert device.counters.since(before).bind_group_creates == 0
