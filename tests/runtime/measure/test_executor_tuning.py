"""The comparison of a decode pass in one dispatch with dispatches."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.tuning import OPS, Tuning
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.output_comparison import INT8_TOLERANCE, distance
from rdrr_runtime.measure import executor_tuning
from rdrr_runtime.measure.executor_tuning import tune_executor
from rdrr_runtime.measure.tuned import Verdict
from rdrr_runtime.measure.tuner import Setting
from rdrr_runtime.phases.context import Grid
from support.packages import SMALL, llama_manifest, write_random_package
from support.seeds import generator_of

ONE, MANY = Grid(128, 1), Grid(128, 64)


@pytest.fixture(scope="module")
def setting(request, tmp_path_factory, device):
    folder = tmp_path_factory.mktemp("executor")
    package = write_random_package(folder, llama_manifest(**SMALL), generator_of(request))
    return Setting(package, device, Policy(), 64, "f16", frozenset(OPS), 3)


@pytest.mark.thorough
def test_grids_are_timed_beside_dispatches(setting):
    if not setting.device.info.software:
        pytest.skip("several workgroups may run at the same time")
    outcome = tune_executor(setting, Tuning(), (MANY, ONE))
    many, single = outcome.trials
    assert (many.grid, many.verdict, many.seconds) == (MANY, Verdict.FAILED, 0.0)
    assert single.grid == ONE
    assert single.verdict in (Verdict.NO_BETTER, Verdict.WON)
    assert min(outcome.dispatches, single.seconds) > 0
    assert outcome.chosen == (ONE if single.verdict is Verdict.WON else None)
    assert outcome.seconds == (single.seconds if outcome.chosen else outcome.dispatches)


@pytest.mark.thorough
def test_kernels_tuned_to_other_workgroups_do_not_rule_out_a_grid(setting):
    def threads(tuning):
        with arena(setting.device, "test") as buffers:
            phases = setting.plan(buffers, tuning).lowered(DECODE).phases
        return [phase.record.threads for phase in phases], [phase.tuning_keys for phase in phases]

    tuning, (before, keys) = Tuning(), threads(Tuning())
    for key in chain.from_iterable(keys):
        other = [
            candidate for candidate in key.candidates if getattr(candidate, "workgroup", 128) != 128
        ]
        if other:
            tuning = tuning.with_params(key.name, other[0])
    assert threads(tuning)[0] != before  # dispatches use them
    assert tune_executor(setting, tuning, (ONE,)).trials[0].verdict is not Verdict.FAILED


@pytest.mark.thorough
def test_a_pass_with_other_logits_is_not_taken(setting, monkeypatch):
    compared = []

    def far(reference, output):
        compared.append((np.abs(reference).max(), distance(reference, output)))
        return np.nan

    monkeypatch.setattr(executor_tuning, "distance", far)
    outcome = tune_executor(setting, Tuning(), (ONE,))
    assert [trial.verdict for trial in outcome.trials] == [Verdict.WRONG]
    assert outcome.chosen is None
    ((largest, error),) = compared
    assert largest > 0
    assert error <= INT8_TOLERANCE


def test_the_faster_way_is_taken_only_if_two_measurements_agree(setting, monkeypatch):
    rounds = iter([({None: 5.0, ONE: 1.0}), ({None: 5.0, ONE: 4.9})])

    class Fake:
        def __init__(self, *_):
            pass

        def times(self, alternatives):
            given = next(rounds)
            return {alternative: np.full(3, given[alternative]) for alternative in alternatives}

    monkeypatch.setattr(executor_tuning, "InterleavedTimer", Fake)
    assert tune_executor(setting, Tuning(), (ONE,)).chosen is None
    rounds = iter([({None: 5.0, ONE: 1.0}), ({None: 5.0, ONE: 1.0})])
    outcome = tune_executor(setting, Tuning(), (ONE,))
    assert (outcome.chosen, outcome.dispatches, outcome.seconds) == (ONE, 5.0, 1.0)
