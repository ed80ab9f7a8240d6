"""`rdrr convert --resume` after a conversion was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from rdrr_converter import progress
from support.commands import environment, error_line, rdrr

WORDS = ("--quantize", "q8_0", "--shard-size", "64KiB")
STALLED = """
import sys, time
import rdrr
def stall(event):
    if event.stage == "write" and event.done > event.total // 2:
        print("half", flush=True)
        time.sleep(60)
rdrr.convert(sys.argv[1], sys.argv[2], quantize="q8_0", shard_size=2**16, progress=stall)
"""


@pytest.fixture(scope="module")
def whole(shallow_checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert rdrr("convert", shallow_checkpoint, out, *WORDS, "--quiet").code == 0
    return {path.name: path.read_bytes() for path in out.iterdir()}


def stop(patch):
    """Interrupt conversions when half of the package is written."""
    advance = progress.Progress.advance

    def advance_and_stop(self, name, amount):
        advance(self, name, amount)
        if self._stage == "write" and self._done > self._total // 2:
            raise KeyboardInterrupt

    patch.setattr(progress.Progress, "advance", advance_and_stop)


# tests/converter/output/test_resume.py kills conversions each time.
@pytest.fixture(
    scope="module", params=["interrupted", pytest.param("killed", marks=pytest.mark.thorough)]
)
def partial(shallow_checkpoint, request, tmp_path_factory):
    """Return what a conversion left behind that ended when half of it was written."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "interrupted":
        with pytest.MonkeyPatch.context() as patch:
            stop(patch)
            assert rdrr("convert", shallow_checkpoint, folder / "out", *WORDS).code == 130
        return folder / ".out.partial"
    command = [sys.executable, "-c", STALLED, str(shallow_checkpoint), str(folder / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [path.name for path in folder.iterdir()] == [".out.partial"]
    return folder / ".out.partial"


@pytest.fixture
def ended(partial, tmp_path):
    """Return the name of a package whose conversion ended early."""
    shutil.copytree(partial, tmp_path / ".out.partial")
    return tmp_path / "out"


def test_it_prints_what_it_reused_and_produces_the_same_bytes(shallow_checkpoint, ended, whole):
    done = rdrr("convert", shallow_checkpoint, ended, *WORDS, "--resume", "--json")
    result = done.json()
    assert 0 < result["reused_shards"] < result["shards"]
    assert {path.name: path.read_bytes() for path in ended.iterdir()} == whole
    assert list(ended.parent.iterdir()) == [ended]


def test_other_options_are_one_clear_error_and_the_right_ones_still_work(
    shallow_checkpoint, ended, whole
):
    refused = rdrr("convert", shallow_checkpoint, ended, "--quantize", "f16", "--resume")
    line = error_line(refused, 1)
    assert "other options" in line
    assert "quantize q8_0" in line
    done = rdrr("convert", shallow_checkpoint, ended, *WORDS, "--resume", code=0)
    assert "shards were reused" in done.err
    assert {path.name: path.read_bytes() for path in ended.iterdir()} == whole


def test_ctrl_c_says_what_is_kept_and_the_same_command_continues(
    shallow_checkpoint, tmp_path, whole, monkeypatch
):
    words = ("convert", shallow_checkpoint, tmp_path / "out", *WORDS)
    with monkeypatch.context() as patch:
        stop(patch)
        stopped = rdrr(*words)
    assert stopped.code == 130
    (line,) = stopped.err.splitlines()
    assert line.startswith("stopped; ")
    assert f"shards are kept in {tmp_path / '.out.partial'}" in line
    done = rdrr(*words)
    assert "shards were reused" in done.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole


def test_object_stores_are_refused(shallow_checkpoint):
    done = rdrr("convert", shallow_checkpoint, "memory://place/out", "--resume")
    assert "folders only" in error_line(done, 2)
