"""Run batches of all targets, several at a time, and collect each finding once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fuzz.targets import Target
from fuzz.worker import Batch, Notes, child
from hypothesis import strategies as st

BATCH = 250
"""Number of cases that one process runs."""

ENOUGH = 5
"""Number of findings after which a target is not run any further."""

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Found:
    """A case on which a parser misbehaved.

    Attributes:
        target: Name of the target.
        what: The misbehaviour in one line.
        trace: The traceback or other output of the process.
        case: The bytes of the case.
    """

    target: str
    what: str
    trace: str
    case: bytes

    @property
    def file_name(self) -> str:
        """Return the name of the file that holds the case in the corpus."""
        return f"finding-{hashlib.sha256(self.case).hexdigest()[:12]}"


@dataclass(frozen=True)
class Plan:
    """The batches that a campaign runs.

    Attributes:
        table: Targets by name.
        cases: Returns the strategy for the cases of a target.
        total: Number of cases of all targets together.
        seed: Random seed that decides all cases.
        start: Number of batches to skip, those that a stopped campaign has run.
        known: For each target its sound cases and those of its corpus, to run instead of new ones.
        processes: Number of processes at a time.
    """

    table: Mapping[str, Target]
    cases: Callable[[str], st.SearchStrategy[bytes]]
    total: int
    seed: int
    start: int = 0
    known: Mapping[str, tuple[Sequence[bytes], Sequence[bytes]]] | None = None
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)

    def batches(self) -> list[Batch]:
        """Return all batches, alternating between the targets."""
        if self.known is not None:
            return [
                Batch(name, 0, len(sound) + len(kept), (*sound, *kept), len(sound))
                for name, (sound, kept) in self.known.items()
            ]
        each = -(-self.total // len(self.table))
        sizes = [min(BATCH, each - at) for at in range(0, each, BATCH)]
        return [
            Batch(name, _seed(self.seed, name, number), size)
            for number, size in enumerate(sizes)
            for name in self.table
        ]


def _seed(seed: int, *more: object) -> int:
    text = " ".join(map(str, (seed, *more)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


@dataclass
class Result:
    """The result of a campaign.

    Attributes:
        counts: Number of cases run, by target.
        seconds: Total running time of a target's processes, in seconds.
        found: The findings, each once.
        outcomes: For each target and outcome, the first case that ended so.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    outcomes: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def add(self, fault: Found) -> bool:
        """Add a finding unless the same one of this target is known; return whether it is new."""
        if any((known.target, known.what) == (fault.target, fault.what) for known in self.found):
            return False
        self.found.append(fault)
        return True


@dataclass
class _Running:
    batch: Batch
    process: BaseProcess
    notes: Notes
    began: float


class Campaign:
    """Runs a plan.

    Args:
        plan: What to run.
        say: Called with a line for each new finding and occasionally one on the progress.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None] = print) -> None:
        self._plan, self._say = plan, say
        self.result = Result()
        self.finished = plan.start
        self._failures: Counter[str] = Counter()

    def run(self) -> Result:
        """Run all batches; a batch that a finding ended is continued with other cases."""
        waiting = deque(self._plan.batches()[self._plan.start :])
        running: list[_Running] = []
        with tempfile.TemporaryDirectory(prefix="rdrr-fuzz-", dir=_scratch()) as folder:
            try:
                while waiting or running:
                    while waiting and len(running) < self._plan.processes:
                        batch = waiting.popleft()
                        if self._failures[batch.name] < ENOUGH:
                            running.append(self._begin(batch, Path(folder)))
                    if running:
                        self._collect(running, waiting)
            finally:
                for thread in running:
                    thread.process.kill()
                    thread.process.join()
        return self.result

    def _begin(self, batch: Batch, folder: Path) -> _Running:
        notes = Notes(Path(tempfile.mkdtemp(dir=folder)))
        target = self._plan.table[batch.name]
        sys.stdout.flush()
        process = _FORK.Process(
            target=child, args=(batch, target.open, self._plan.cases(batch.name), notes)
        )
        process.start()
        return _Running(batch, process, notes, time.monotonic())

    def _collect(self, running: list[_Running], waiting: deque[Batch]) -> None:
        """Wait until a process ends, and record its results."""
        wait([thread.process.sentinel for thread in running])
        for ended in [thread for thread in running if not thread.process.is_alive()]:
            running.remove(ended)
            ended.process.join()
            self._note(ended, waiting)

    def _note(self, ended: _Running, waiting: deque[Batch]) -> None:
        name, result = ended.batch.name, self.result
        count, case = ended.notes.read()
        result.counts[name] += count
        result.seconds[name] += time.monotonic() - ended.began
        self.finished += 1
        for path in sorted(ended.notes.outcomes.glob("*")):
            key = name, path.name
            result.outcomes[key] = result.outcomes.get(key) or path.read_bytes()
        if not ended.process.exitcode:
            return
        self._failures[name] += 1
        trace = ended.notes.trace.read_text(encoding="utf-8", errors="replace")
        fault = Found(name, _what(ended.process.exitcode, trace), _shortened(trace), case)
        if result.add(fault):
            self._say(f"FOUND in {name}: {fault.what}")
        left = ended.batch.size - count
        if (
            left > 0 and self._plan.known is None
        ):  # other cases than those that were not run, but as many
            waiting.append(Batch(name, _seed(ended.batch.seed, "again"), left))


def _shortened(trace: str) -> str:
    return trace if len(trace) < 6000 else f"{trace[:1000]}\n...\n{trace[-5000:]}"


def _what(exitcode: int | None, trace: str) -> str:
    """Describe in one line how a process ended: what was raised and where, or the signal."""
    places = re.findall(r'File "[^"]*?((?:rdrr|fuzz)[^/"]*/[^"]*)", line (\d+)', trace)
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        kind = {"SIGPROF": "took too long", "SIGALRM": "waited too long"}.get(
            name, f"died of {name}"
        )
        return f"{kind} at {':'.join(places[0])}" if places else kind
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith(" ")]
    last = lines[-1][:160] if lines else "ended without a word"
    ours = [place for place in places if not place[0].startswith("fuzz")]
    return f"{re.sub(r'[0-9]+', 'N', last)[:100]} at {':'.join(ours[-1])}" if ours else last


def _scratch() -> str | None:
    """Return a folder in memory, if any: a campaign writes hundreds of thousands of files."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
