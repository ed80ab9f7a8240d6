"""Compiled searches are cached where possible, and run without a cache otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.commands import environment

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


@pytest.mark.parametrize(("words", "is_cached"), [(["full"], False), ([], True)])
def test_code_that_cannot_be_cached_still_runs(tmp_path, words, is_cached):
    program, cache = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, *words],
        env=environment(NUMBA_CACHE_DIR=str(cache)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
    assert any(path.is_file() for path in cache.rglob("*")) == is_cached
