"""Stored parameters change the speed of kernels, not their results, and the tuner ensures it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_device.dry_run import DryRunArena
from rdrr_device.tuning import OPS, Tuning, Workgroup
from rdrr_runtime.compile.choice.hints import resolve
from rdrr_runtime.compile.pass_spec import DECODE, PREFILL, TUNED
from rdrr_runtime.exec.executor import DispatchExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.exec.timing import InterleavedTimer, better
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.measure import tuner
from rdrr_runtime.measure.tuned import Outcome, Verdict
from rdrr_runtime.measure.tuner import Setting, _Tuner, tune
from rdrr_runtime.phases.products import matmul_int8
from rdrr_runtime.phases.products.matmul_int8 import Tile
from rdrr_runtime.phases.rows import embed
from support.comparison import relative_error
from support.packages import VOCAB, llama_manifest, write_random_package
from support.seeds import generator_of

CONTEXT, LONG = 32, 140
INT8 = resolve({"run flag": {"q4kMatmul": "fused_q4k_int8"}})


@pytest.fixture(scope="module")
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    return write_random_package(folder, llama_manifest(), generator_of(request))


def _setting(package, device, *ops: str, policy=None) -> Setting:
    hints = policy or resolve({})
    return Setting(package, device, hints, CONTEXT, "f16", frozenset(ops), 3)


def _tuning_keys(package, device, policy, tuning=None, context=CONTEXT) -> dict:
    plan = Plan(
        package,
        DryRunArena(device.capabilities),
        policy,
        context=context,
        kv_dtype="f16",
        tuning=tuning,
    )
    lowered = [plan.lowered(step) for step in (PREFILL, DECODE)]
    phases = [phase for each in lowered for phase in (*each.body, *each.head, *each.sample)]
    return {tuning_key.name: tuning_key for tunable in phases for tuning_key in tunable.tuning_keys}


def test_stored_parameters_are_used_only_if_they_are_a_candidate():
    tuning = Tuning().with_params("norm here", Workgroup(64))
    default, others = Workgroup(32), (Workgroup(32), Workgroup(64))
    assert tuning.tuning_key("norm here", default, others).used == Workgroup(64)
    assert tuning.tuning_key("norm there", default, others).used == default
    assert tuning.tuning_key("norm here", default, (Workgroup(128),)).used == default
    assert tuning.without(["norm here"]).tuning_key("norm here", default, others).used == default
    for foreign in ({"workgroup": 7}, {"threads": 64}, {"workgroup": 64, "team": 2}, {}):
        assert (
            Tuning({"norm here": foreign}).tuning_key("norm here", default, others).used == default
        )


def test_candidates_are_listed_when_they_are_asked_for():
    checked = []

    def fits(params: Workgroup) -> bool:
        checked.append(params.workgroup)
        return params.workgroup < 256

    default, forms = Workgroup(32), [Workgroup(size) for size in (32, 64, 64, 128, 256)]
    key = Tuning().tuning_key("norm here", default, filter(fits, forms))
    assert not checked
    assert key.candidates == key.candidates == (Workgroup(64), Workgroup(128))
    assert checked == [32, 64, 64, 128, 256]
    stored = Tuning({"norm here": {"workgroup": 128}})
    key = stored.tuning_key("norm here", default, filter(fits, forms))
    assert (key.used, key.candidates) == (Workgroup(128), (Workgroup(64), Workgroup(128)))


@pytest.mark.thorough
@pytest.mark.cover
@pytest.mark.parametrize("policy", [INT8, resolve({})], ids=["int8", "f32"])
def test_every_op_gives_the_same_results_with_three_sets_of_parameters(
    package, device, rng, policy
):
    tuning_keys = _tuning_keys(package, device, policy, context=LONG)
    for op in ("matmul", "attention", "softmax", "norm", "dequant"):
        assert max(1 + len(each.candidates) for each in tuning_keys.values() if each.op == op) >= 3
    others = Tuning()
    for key, tuning_key in tuning_keys.items():
        # A software adapter is slow with workgroups of many threads.
        quick = [
            candidate
            for candidate in tuning_key.candidates
            if candidate.as_dict().get("workgroup", 0) <= 256
        ]
        if quick:
            others = others.with_params(key, quick[rng.integers(len(quick))])
    changed = [
        each
        for each in _tuning_keys(package, device, policy, others, LONG).values()
        if each.is_tuned
    ]
    assert len(changed) > len(tuning_keys) // 2
    # A software adapter compiles tiled int8 products for seconds, so only decode is tested.
    prompt = [] if policy is INT8 else [rng.integers(0, VOCAB, 70).tolist()]
    ids = rng.integers(0, VOCAB, 3).tolist()
    logits = []
    for tuning in (None, others):
        backend = GpuBackend(package, context=LONG, device=device, policy=policy, tuning=tuning)
        read = [backend.logits(ids_read, 0) for ids_read in prompt]
        steps = [backend.logits([id_], base) for base, id_ in enumerate(ids, 70 * len(prompt))]
        logits.append(np.concatenate(read + steps))
        backend.close()
    tolerance = 2e-2 if policy is INT8 else 1e-3
    assert relative_error(logits[1], logits[0]) < tolerance


def test_a_candidate_wins_only_by_more_than_the_noise():
    calm, shaky = np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.8, 0.9, 1.1, 1.2])
    assert better(calm * 0.96, calm)
    assert not better(calm * 0.98, calm)
    assert not better(calm * 0.9, shaky)
    assert better(calm * 0.7, shaky)
    assert not better(calm, calm)


def _scripted(monkeypatch, tuning_key: list[float], pairs: list[list[float]]) -> None:
    """Fake times: those of a key's parameters, the default first, then those of the pairs."""
    scripted = iter(pairs)

    def interleaved(_, alternatives, repeats=1):
        assert repeats >= 1
        times = tuning_key if len(alternatives) > 2 else next(scripted)
        assert len(times) == len(alternatives)
        return [np.full(3, time) for time in times]

    monkeypatch.setattr(InterleavedTimer, "interleaved", interleaved)


@pytest.mark.parametrize(
    ("pairs", "chosen", "passes"),
    [
        ([[1.0, 0.5], [1.0, 1.0], [1.0, 1.0]], 16, 1),
        ([[1.0, 0.99]], 32, 0),  # the second measurement does not confirm it
        ([[1.0, 0.5], [1.0, 1.1], [1.0, 1.1]], 32, 1),  # whole passes are slower
    ],
)
def test_the_winner_is_measured_again_and_compared_in_whole_passes(
    package, device, monkeypatch, pairs, chosen, passes
):
    monkeypatch.setattr(embed, "CANDIDATES", (8, 16))
    _scripted(monkeypatch, [1.0, 0.9, 0.5], pairs)
    setting = replace(_setting(package, device, "dequant"), passes=(DECODE,))
    tuned = tune(setting, Tuning())
    (outcome,) = tuned.outcomes
    assert outcome.chosen == Workgroup(chosen)
    assert outcome.seconds <= outcome.default_seconds
    assert tuned.trials == 2
    assert len(tuned.passes) == passes
    assert next(trial.verdict for trial in outcome.trials) is Verdict.NO_BETTER


class Incomplete(Tile):
    """A tile half of whose outputs no thread computes."""

    @property
    def threads(self) -> int:
        return super().threads // 2


@pytest.mark.thorough
def test_a_candidate_with_other_results_never_wins(package, device, monkeypatch):
    wrong, right = Incomplete(128, 64, 8, 4), Tile(64, 64, 8, 4)
    monkeypatch.setattr(matmul_int8, "CANDIDATES", (wrong, right))
    tuning_keys = tuner._tuning_keys

    def one_shape(*words):
        keys = tuning_keys(*words)
        return {key: keys[key] for key in keys if "384x512" in key}

    monkeypatch.setattr(tuner, "_tuning_keys", one_shape)
    setting = replace(_setting(package, device, "matmul", policy=INT8), context=64)
    setting = replace(setting, passes=(PREFILL,))
    tuned = tune(setting, Tuning())  # more rows than `matvec_rows` supports
    (outcome,) = tuned.outcomes
    verdicts = {trial.params: trial.verdict for trial in outcome.trials}
    assert verdicts[wrong] is Verdict.WRONG
    assert verdicts[right] in (Verdict.WON, Verdict.NO_BETTER)
    assert outcome.chosen in (right, outcome.tuning_key.default)


def test_stored_keys_are_not_tuned_again_and_nothing_is_loaded(package, device):
    known = Tuning()
    tuning_keys = [
        key for key in _tuning_keys(package, device, resolve({})).values() if key.candidates
    ]
    for tuning_key in tuning_keys:
        known = known.with_params(tuning_key.name, tuning_key.default)
    before = device.counters.copy()
    ops = ("matmul", "attention", "softmax", "norm", "dequant")
    tuned = tune(_setting(package, device, *ops), known)
    assert (tuned.trials, tuned.outcomes, tuned.passes) == (0, (), ())
    assert tuned.known == len(tuning_keys)
    work = device.counters.since(before)
    assert (work.dispatches, work.buffer_creates, work.bytes_written) == (0, 0, 0)


def test_an_output_that_is_not_written_is_detected(package, device):
    from rdrr_runtime.exec.output_comparison import Check

    with arena(device, "check") as buffers:
        plan = Plan(package, buffers, resolve({}), context=CONTEXT, kv_dtype="f16")
        (lookup,) = [phase for phase in plan.lowered(DECODE).body if phase.label == "embed"]
        run = _Tuner(_setting(package, device), None, plan, Tuning(), buffers, ids=(5,))
        run.memory = plan.memory(DECODE, buffers)
        executor = DispatchExecutor(device)
        check = Check.of(executor, plan, [lookup])
        prepared = executor.prepare([lookup])
        all_of_it = check.results(prepared, 1, run._reset)
        assert check.agrees(all_of_it, check.results(prepared, 1, run._reset))
        assert not check.agrees(all_of_it, check.results((), 1, run._reset))


def test_every_parameter_of_every_pass_can_be_tuned(package, device, monkeypatch):
    """Batches and windows are covered as well, which the tuner once could not reach."""
    tried: list[str] = []
    monkeypatch.setattr(_Tuner, "begin", lambda *_: None)
    monkeypatch.setattr(
        _Tuner,
        "try_candidates",
        lambda _, step, tuning_key: tried.append(tuning_key.name) or _untried(step, tuning_key),
    )
    setting = replace(_setting(package, device, *OPS, policy=INT8), passes=TUNED)
    tune(setting, Tuning())
    plan = setting.plan(DryRunArena(device.capabilities))
    for spec in TUNED:
        choices = plan.decisions([spec])
        keys = {param.name for decision in choices for param in decision.params if param.candidates}
        assert keys
        assert keys <= set(tried), spec.name


def _untried(step, tuning_key) -> Outcome:
    return Outcome(tuning_key, step.name, tuning_key.default, 1.0, 1.0, ())
