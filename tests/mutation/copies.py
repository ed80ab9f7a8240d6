"""A copy of the tracked tree, in which faults are planted and tests run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutation.faults import Fault
from support.commands import COMPONENTS, ROOT
from support.selected_tests import COVER, SAMPLE

IMPORTED = (*COMPONENTS, "tests", "benchmarks")
# The selection of the tests is made once, and a copy needs its bytecode.
UNSET = (COVER, SAMPLE, "RDRR_TEST_DEVICE", "PYTHONDONTWRITEBYTECODE")
PASSED, FAILED = 0, 1  # exit codes of pytest
TIMED_OUT = -1
LIMIT = 900.0  # seconds of a run that has one fault


@dataclass(frozen=True)
class Run:
    """The end of a run of pytest: its exit code, the tests that failed, its output, its seconds."""

    code: int
    failed: tuple[str, ...]
    out: str
    seconds: float


class Copy:
    """A copy of the tracked files, which imports its own code in all of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        for words in (["init", "-q"], ["add", "-A"]):  # some tests ask git for the tracked files
            subprocess.run(["git", *words], cwd=folder, check=True)

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Plant a fault, and restore the file afterwards, with the time of its old bytecode."""
        path = self.folder / fault.file
        path.write_text(fault.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        try:
            yield
        finally:
            shutil.copy2(ROOT / fault.file, path)

    def selected(self, files: Sequence[str], *, cover: bool) -> list[str]:
        """Return the ids of the tests of files that `make test` runs, or of all their tests."""
        run = self.pytest("--collect-only", "-o", "addopts=--import-mode=importlib",
                          *files, cover=cover)  # fmt: skip
        return [line for line in run.out.splitlines() if "::" in line]

    def pytest(self, *words: str, cover: bool = False, limit: float | None = LIMIT) -> Run:
        """Run pytest in the copy, on what `make test` runs or on all that the words name."""
        variables = {key: value for key, value in os.environ.items() if key not in UNSET}
        variables["PYTHONPATH"] = os.pathsep.join(str(self.folder / name) for name in IMPORTED)
        if cover:
            variables[COVER] = "1"
        failures = self.folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
        failures.unlink(missing_ok=True)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *words],
                cwd=self.folder, env=variables, timeout=limit,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            code, out = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            code, out = TIMED_OUT, str(error)
        failed = (
            tuple(json.loads(failures.read_text(encoding="utf-8"))) if failures.exists() else ()
        )
        return Run(code, failed, out, time.monotonic() - began)
