"""The steps of `run_modes.py` are commands that exist, and failed steps are reported."""

from __future__ import annotations

import sys

import pytest
import run_modes
from support.commands import ROOT


@pytest.mark.parametrize("step", [*run_modes.STEPS, run_modes.EXTERNAL], ids=lambda step: step.name)
def test_each_step_is_a_script_with_all_placeholders_replaced(step):
    names = [*run_modes.PACKAGES, *run_modes.KERNEL_SHAPES, "peer", "gguf"]
    words = run_modes.command(step, {name: f"/files/{name}" for name in names}, ("--tokens", "5"))
    assert words[0] == sys.executable
    assert words[1] == "-m" or (ROOT / "benchmarks" / step.program).is_file()
    assert not [word for word in words if "{" in word]
    takes_size = step.program in run_modes.SIZED
    assert (words[-2:] == ["--tokens", "5"]) == takes_size


def test_the_last_line_of_a_command_is_its_result():
    code = "print('a table'); print('{\"adapter\": \"fake\"}')"
    assert run_modes.run([sys.executable, "-c", code]) == {"adapter": "fake"}


@pytest.mark.parametrize(
    ("code", "limit", "reason"),
    [
        ("import sys; sys.exit('error: no adapter')", 60, "no adapter"),
        ("import time; time.sleep(60)", 0.1, "took more than"),
    ],
)
def test_a_step_that_fails_is_reported_with_the_reason(code, limit, reason):
    result = run_modes.run([sys.executable, "-c", code], limit)
    (line,) = run_modes.lines("modes-small", result)
    assert line.startswith("modes-small: FAILED")
    assert reason in line
