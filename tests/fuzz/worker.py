"""A batch of cases in a process of its own, which may die of any of them.

What the parent needs to know is in files that are written before each case, so that it is there
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
"""Bytes of address space that a process may take beyond those it begins with."""

CPU_SECONDS, SECONDS = 5.0, 60.0
"""What a case may take: of the processor, and in all."""

LONGEST = 3600
"""Bytes of a case that is kept for how it ended; of a longer one only the ending is."""

_COUNT = struct.Struct("<Q")


@dataclass(frozen=True)
class Batch:
    """Cases that one process runs.

    Attributes:
        name: Of the target.
        seed: From which Hypothesis makes the cases.
        size: How many.
        known: Cases to run instead of those.
        sound: How many of them, from the first on, have to be accepted.
    """

    name: str
    seed: int
    size: int
    known: Sequence[bytes] = ()
    sound: int = 0


@dataclass(frozen=True)
class Notes:
    """The files that a process leaves.

    Attributes:
        folder: Where.
    """

    folder: Path

    @property
    def current(self) -> Path:
        """Number of cases begun, and the bytes of the last."""
        return self.folder / "case"

    @property
    def trace(self) -> Path:
        """What is known of the end: a traceback, or what the process said."""
        return self.folder / "trace"

    @property
    def outcomes(self) -> Path:
        """A folder with the first short case of each way to end, empty where none was short."""
        return self.folder / "outcomes"

    def read(self) -> tuple[int, bytes]:
        """Number of cases begun, and the bytes of the last."""
        raw = self.current.read_bytes() if self.current.exists() else bytes(_COUNT.size)
        return _COUNT.unpack_from(raw)[0], raw[_COUNT.size :]


def run_batch(batch: Batch, reader: Reader, cases: st.SearchStrategy[bytes], notes: Notes) -> None:
    """Run the cases of a batch; the first finding is made small and ends it.

    Raises:
        Finding: There is one; its case is the last in the notes.
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
    """Runs cases under the limits, and writes down which.

    Args:
        reader: Reads them.
        notes: Where to write.
    """

    def __init__(self, reader: Reader, notes: Notes) -> None:
        self._reader, self._notes = reader, notes
        self._begun, self._has_failed = 0, False
        self._seen: set[str] = set()
        self._file = notes.current.open("w+b", buffering=0)
        notes.outcomes.mkdir(exist_ok=True)

    def run_one(self, case: bytes) -> None:
        """Run one; a test of Hypothesis gives nothing back."""
        self.run(case)

    def run(self, case: bytes) -> str:
        """Run one and say how it ended."""
        self._begun += not self._has_failed  # what comes after a finding makes it smaller
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
    # Their default action ends the process even where no Python code runs any more.
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


def child(
    batch: Batch,
    open_reader: Callable[[Path], Reader],
    cases: st.SearchStrategy[bytes],
    notes: Notes,
) -> None:
    """The life of a process: exits 0, or 1 with a finding, or dies of a signal."""
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
    """The traceback of what a parser raised, or of a fault of these tests."""
    shown: BaseException | None = error.__cause__ or error
    while shown is not None:
        shown.__notes__ = []  # Hypothesis adds whole strategies
        shown = shown.__cause__ or shown.__context__
    traceback.print_exception(error.__cause__ or error, file=trace)
    print(f"{type(error).__name__}: {str(error)[:300]}", file=trace, flush=True)


def _limit_memory() -> None:
    """Bound the address space, where the system says how much of it is taken."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        taken = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
