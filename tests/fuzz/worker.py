"""Run a batch of cases in a process of its own, which any of them may crash.

Whatever the parent process needs is written to files before each case, so that it is there
however the process ends.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fuzz.readers import Reader
from fuzz.verdicts import ACCEPTED, Finding, judge
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

MEMORY = 1 << 30
"""Bytes of address space that a process may use beyond those it starts with."""

CPU_SECONDS, SECONDS = 5.0, 60.0
"""Limits of a case: CPU time and wall-clock time."""

LONGEST = 3600
"""Largest size in bytes of a case kept for its outcome; of longer ones only the outcome is."""

_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class Batch:
    """The cases that one process runs.

    Attributes:
        name: Name of the target.
        seed: Seed from which Hypothesis generates the cases.
        size: Number of cases.
        known: Cases to run instead of generated ones.
        sound: How many of `known`, from the first on, must be accepted.
    """

    name: str
    seed: int
    size: int
    known: Sequence[bytes] = ()
    sound: int = 0


@dataclass(frozen=True)
class Notes:
    """The files in which a process records its progress.

    Attributes:
        folder: Folder of the files.
    """

    folder: Path

    @property
    def current(self) -> Path:
        """The file with the number of cases begun and the bytes of the last one."""
        return self.folder / "case"

    @property
    def trace(self) -> Path:
        """The file that tells how the process ended: a traceback, or its output."""
        return self.folder / "trace"

    @property
    def outcomes(self) -> Path:
        """The folder with a short case per outcome; the file is empty if no case was short."""
        return self.folder / "outcomes"

    def read(self) -> tuple[int, bytes]:
        """Return the number of cases begun and the bytes of the last one."""
        raw = self.current.read_bytes() if self.current.exists() else bytes(_COUNT.size)
        return _COUNT.unpack_from(raw)[0], raw[_COUNT.size :]


def run_batch(batch: Batch, reader: Reader, cases: st.SearchStrategy[bytes], notes: Notes) -> None:
    """Run the cases of a batch; the first finding is shrunk and ends it.

    Raises:
        Finding: A parser misbehaved; its case is the last one in the notes.
    """
    runner = _Cases(reader, notes)
    if batch.known:
        for number, case in enumerate(batch.known):
            if runner.run(case) != ACCEPTED and number < batch.sound:
                raise Finding("a sound case is refused")
        return
    chosen = settings(
        max_examples=batch.size,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    seed(batch.seed)(chosen(given(cases)(runner.run_one)))()


class _Cases:
    """Runs cases under the limits, and records each before it starts.

    Args:
        reader: The reader to run.
        notes: The files to write to.
    """

    def __init__(self, reader: Reader, notes: Notes) -> None:
        self._reader, self._notes = reader, notes
        self._begun, self._has_failed = 0, False
        self._seen: set[str] = set()
        self._file = notes.current.open("w+b", buffering=0)
        notes.outcomes.mkdir(exist_ok=True)

    def run_one(self, case: bytes) -> None:
        """Run one case; a Hypothesis test must return None."""
        self.run(case)

    def run(self, case: bytes) -> str:
        """Run one case and return its outcome."""
        self._begun += not self._has_failed  # cases after a finding only shrink it
        self._file.seek(0)
        self._file.truncate()
        self._file.write(_COUNT.pack(self._begun) + case)
        _set_timers(CPU_SECONDS, SECONDS)
        try:
            outcome = judge(self._reader, case)
        except Finding:
            self._has_failed = True
            raise
        finally:
            _set_timers(0, 0)
        if outcome not in self._seen:
            (self._notes.outcomes / outcome).write_bytes(case if len(case) <= LONGEST else b"")
            if len(case) <= LONGEST:
                self._seen.add(outcome)
        return outcome


def _set_timers(cpu: float, wall: float) -> None:
    # The default action of the signals ends the process even while no Python code runs.
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


def child(
    batch: Batch,
    open_reader: Callable[[Path], Reader],
    cases: st.SearchStrategy[bytes],
    notes: Notes,
) -> None:
    """Run a batch as a process: exit with 0, with 1 after a finding, or die from a signal."""
    trace = notes.trace.open("w")
    os.dup2(trace.fileno(), 1)
    os.dup2(trace.fileno(), 2)
    faulthandler.enable(trace)
    for number in (signal.SIGPROF, signal.SIGALRM):
        faulthandler.register(number, trace, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)
    with tempfile.TemporaryDirectory(dir=notes.folder) as folder:
        try:
            reader = open_reader(Path(folder))
            _limit_memory()
            run_batch(batch, reader, cases, notes)
        except BaseException as error:
            _write_trace(error, trace)
            sys.exit(1)


def _write_trace(error: BaseException, trace: IO[str]) -> None:
    """Write the traceback of what a parser raised, or of a fault in these tests."""
    shown: BaseException | None = error.__cause__ or error
    while shown is not None:
        shown.__notes__ = []  # Hypothesis adds the text of whole strategies
        shown = shown.__cause__ or shown.__context__
    traceback.print_exception(error.__cause__ or error, file=trace)
    print(f"{type(error).__name__}: {str(error)[:300]}", file=trace, flush=True)


def _limit_memory() -> None:
    """Limit the address space if the system reports how much is in use."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        taken = int(statm.read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
