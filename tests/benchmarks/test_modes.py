"""Decode modes: ratios and gates, selection by name, the interval model and GPU times."""

from __future__ import annotations

import pytest
from published.modes.comparison import Comparison
from published.modes.gpu_time import GpuTime
from published.modes.interval_model import interval_gains
from published.modes.runs import ModeRuns
from published.modes.table import GATES, MODES, chosen
from published.ratios import NOT_GATED, Ratio
from rdrr.bench.figures import Spread
from rdrr.bench.runs import Run, Workload
from rdrr_device.counters import Counters, HostSeconds
from rdrr_format.errors import UsageError
from rdrr_runtime.decode.base import Counts


def test_a_ratio_is_taken_round_by_round():
    ratio = Ratio.between("a over b", [4.0, 6.0, 9.0], [2.0, 2.0, 9.0], gate=1.5)
    assert ratio.spread == Spread(2.0, 1.0, 3.0)
    assert ratio.verdict(software=False) == "pass"
    assert ratio.verdict(software=True) == NOT_GATED
    slow = Ratio.between("a over b", [1.0], [1.0], gate=1.5)
    assert slow.verdict(software=False) == "missed"
    assert Ratio.between("a over b", [1.0], [1.0]).verdict(software=False) == ""


def test_modes_are_selected_by_name_and_by_group_each_once():
    names = [choice.name for choice in chosen(["webllm", "ours", "ours-x2"])]
    assert names == ["webllm", "ours-x1", "ours-x2", "ours-x4", "ours-x8"]
    assert [choice.name for choice in chosen(["all"])] == list(MODES)
    with pytest.raises(UsageError, match=r"one of webllm.*found webgpu"):
        chosen(["webgpu"])


def test_submission_and_sampler_can_be_replaced_in_all_modes():
    per_op, cached = chosen(["ours-x1", "webllm+cache"], submit="per-op", sampler="cpu")
    assert per_op.submission.submit_per_op
    assert (per_op.sampler, cached.sampler) == ("cpu", "cpu")
    whole = chosen(["webllm+cache"], submit="per-token")[0]
    assert not whole.submission.submit_per_op
    assert whole.submission.uniforms == "cached"  # nothing else has changed


def test_every_gate_names_existing_modes():
    assert {name for gate in GATES for name in (gate.fast, gate.slow)} <= set(MODES)


def measured(name: str, milliseconds: float, *, encode: float = 0.0, gpu: float = 1.0) -> ModeRuns:
    """Return the runs of a mode with ten tokens that took `milliseconds` each."""
    seconds = 1e-3 * milliseconds
    host = HostSeconds(submit=10 * 1e-3 * encode)
    run = Run((0,), 0.0, 10 * seconds, (seconds,) * 10, Counts(), Counters(dispatches=10), host)
    return ModeRuns(MODES[name], (run, run), GpuTime(gpu, gpu + 1.0, 100.0, 10))


def test_the_gain_of_an_interval_is_predicted_from_the_costs_of_one_token():
    modes = (
        measured("ours-x1", 6.0, encode=1.0, gpu=2.0),
        measured("ours-x4", 3.0, gpu=2.0),
        measured(
            "ahead-x1", 4.0, encode=1.0, gpu=2.0
        ),  # submits ahead, so it is no variant of ours-x4
        measured("ahead-x8", 2.0, encode=1.0, gpu=2.0),
    )
    (gain,) = interval_gains(modes)
    # The host encodes for 1 ms while the GPU works for 2 ms; 3 ms of waiting come every 4 tokens.
    assert (gain.name, gain.over) == ("ours-x4", "ours-x1")
    assert gain.sync_ms == pytest.approx(3.0)
    assert gain.predicted == pytest.approx(6 / (2 + 3 / 4))
    assert gain.measured == pytest.approx(2.0)


def test_one_submission_per_op_overlaps_host_and_gpu_even_without_an_interval():
    cached, every_fourth = "webllm+cache", "webllm+cache+interval"
    modes = (measured(cached, 6.0, encode=4.0, gpu=2.0), measured(every_fourth, 5.0))
    (gain,) = interval_gains(modes)
    assert (gain.name, gain.over) == (every_fourth, cached)
    assert gain.sync_ms == pytest.approx(2.0)
    assert gain.predicted == pytest.approx(6 / (4 + 2 / 4))
    assert not list(interval_gains((measured("webllm", 6.0), measured(every_fourth, 5.0))))


def test_the_overhead_of_passes_does_not_count_as_time_of_kernels():
    after_idling, after_another = GpuTime(1.1, 1.1, 4.0, 150), GpuTime(0.7, 1.2, 5.0, 150)
    assert after_idling.kernels_ms == pytest.approx(0.5)
    assert after_another.kernels_ms == pytest.approx(0.45)
    same = (measured("webllm", 5.0, gpu=1.0), measured("ours-x1", 5.0, gpu=-1.0))
    comparison = Comparison("fake", False, Workload(), same)
    assert comparison.gpu_spread() is None
    assert "coarse" in comparison.gpu_verdict()


@pytest.mark.parametrize(("times", "verdict"), [((1.0, 1.04), "pass"), ((1.0, 1.2), "missed")])
def test_the_verdict_reports_kernels_that_take_different_times_in_two_modes(times, verdict):
    modes = tuple(
        measured(name, 5.0, gpu=gpu) for name, gpu in zip(("webllm", "ours-x1"), times, strict=True)
    )
    comparison = Comparison("fake", False, Workload(), modes)
    assert comparison.gpu_spread() == pytest.approx(times[1] - 1)
    assert comparison.as_dict()["gpu_time_verdict"] == verdict
    ratio = next(entry for entry in comparison.ratios() if entry.name == "ours-x1 over webllm")
    assert ratio.verdict(software=False) == "missed"  # both take equally long, and the gate is 1.2
