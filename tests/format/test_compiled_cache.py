"""Compiled searches are cached where possible, run without a cache otherwise, and announced."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, environment

PROGRAM = """
import resource, sys
from rdrr_format.codecs.compiled import compiled
@compiled
def one_more(number):
    return number + 1
if sys.argv[1:] == ["full"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print(one_more(2))
"""


@pytest.mark.parametrize(
    ("words", "is_cached"),
    # The test below has the control too.
    [(["full"], False), pytest.param([], True, marks=pytest.mark.thorough)],
)
def test_code_that_cannot_be_cached_still_runs(tmp_path, words, is_cached):
    program, cache = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(PROGRAM, encoding="utf-8")
    variables = environment(NUMBA_CACHE_DIR=str(cache))
    variables.pop("COVERAGE_PROCESS_CONFIG", None)  # on a full disk it cannot write its data either
    done = subprocess.run(
        [sys.executable, program, *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    assert any(path.is_file() for path in cache.rglob("*")) == is_cached


QUANTIZE = """
import logging
import numpy as np
from rdrr_format.codecs import CODECS

class Counter(logging.Handler):
    count = 0
    def emit(self, record):
        assert record.getMessage().startswith("compiling codecs (")
        self.count += 1

logger, counter = logging.getLogger("rdrr_format.codecs"), Counter()
logger.setLevel(logging.INFO)
logger.addHandler(counter)
weights = np.ones((1, 256), np.float32)
CODECS["BF16"].quantize(weights)
print(counter.count)
CODECS["Q8_0"].quantize(weights)
first = counter.count
CODECS["Q8_0"].quantize(weights)
print(int(first > 0), counter.count - first)
"""


def quantize(packages: Path, home: Path) -> list[str]:
    """Quantize in a new process; return counts of reports: before, at, and after the first use."""
    variables = environment(PYTHONPATH=str(packages), HOME=str(home), XDG_CACHE_HOME=str(home))
    done = subprocess.run(
        [sys.executable, "-B", "-c", QUANTIZE],
        env={key: value for key, value in variables.items() if key != "NUMBA_CACHE_DIR"},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def installed(folder: Path) -> Path:
    """Copy the package of the codecs to a folder, as an installation does."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "format" / "rdrr_format", folder / "rdrr_format", ignore=ignored)
    return folder


def test_compilation_is_reported_once_and_not_where_the_cache_has_it(tmp_path):
    packages = installed(tmp_path / "packages")
    assert quantize(packages, tmp_path) == ["0", "1", "0"]
    assert quantize(packages, tmp_path) == ["0", "0", "0"]
    assert any(packages.rglob("*.nbi"))


@pytest.mark.thorough
def test_a_folder_of_packages_that_cannot_be_written_leaves_the_cache_in_the_users_folder(tmp_path):
    packages, home = installed(tmp_path / "packages"), tmp_path / "home"
    home.mkdir()
    # A file in place of the folder keeps out root too, whom permissions do not.
    (packages / "rdrr_format" / "codecs" / "__pycache__").write_text("", encoding="utf-8")
    assert quantize(packages, home) == ["0", "1", "0"]
    assert quantize(packages, home) == ["0", "0", "0"]
    assert any(home.rglob("*.nbi"))
