"""The benchmark of sizes: what it compares, and a text that it must not be judged on."""

from __future__ import annotations

import argparse

import bench_sizes
import pytest
from rdrr._convert import calibration_text
from rdrr_format.errors import UsageError
from support.commands import EXAMPLE


def test_a_text_that_the_sensitivities_were_measured_on_is_refused(tmp_path):
    words = calibration_text().split()
    text = tmp_path / "text.txt"
    text.write_text("Something else. " + " ".join(words[40:60]), encoding="utf-8")
    with pytest.raises(UsageError, match="phrases of the calibration text"):
        bench_sizes.run(argparse.Namespace(checkpoint=EXAMPLE, text=text, tokens=300, bits=[]))
    assert not bench_sizes.shared_phrases("a few words of another text " * 9, calibration_text())
