"""Run conversions in processes that are killed at a given time or file operation.

One process imports the converter and compiles the codecs once, then forks for each conversion, so
that a conversion starts without delay and killing it loses no set-up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rdrr_converter.convert import convert
from rdrr_format.errors import RdrrError
from support.deadlines import HANGS

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
"""Audit events of operations that change files; a rename and a replacement are the same event."""


@dataclass(frozen=True)
class Outcome:
    """How a conversion ended.

    Attributes:
        killed: Whether SIGKILL ended it.
        error: Message of the error that ended it, if any.
        events: Number of file operations that it performed.
        seconds: Running time in seconds.
        reused: Number of shards that were taken over instead of written.
    """

    killed: bool
    error: str | None = None
    events: int = 0
    seconds: float = 0.0
    reused: int = 0


class Converters:
    """A context manager that owns the process that forks."""

    def __enter__(self) -> Converters:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=HANGS)

    def convert(
        self,
        source: Path,
        destination: Path,
        *,
        kill_after: float | None = None,
        kill_at: int | None = None,
        **options: Any,
    ) -> Outcome:
        """Run `convert` in a process of its own.

        Args:
            source: As for `convert`.
            destination: As for `convert`.
            kill_after: Time in seconds after which it is killed.
            kill_at: Number, from 1, of the file operation before which it is killed.
            options: As for `convert`.
        """
        order = [str(source), str(destination), options, kill_after, kill_at]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


def _serve() -> None:
    """Serve requests from stdin until it ends.

    The first source is also converted in this process, which compiles the codecs before a fork.
    """
    for number, line in enumerate(sys.stdin):
        source, destination, options, kill_after, kill_at = json.loads(line)
        if number == 0:
            for quantize in ("q4_k_m", "q8_0"):
                convert(source, destination + "-warm", quantize=quantize, workers=1, overwrite=True)
            shutil.rmtree(destination + "-warm")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            outcome = _run(source, destination, options, kill_at)
            os.write(writing, json.dumps(asdict(outcome)).encode())
            os._exit(0)
        os.close(writing)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = Outcome(killed=os.WIFSIGNALED(status))
        print(answer if answer else json.dumps(asdict(killed)), flush=True)


def _run(source: str, destination: str, options: dict[str, Any], kill_at: int | None) -> Outcome:
    events = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if event in FILE_EVENTS and str(Path(destination).parent) in str(arguments[0]):
            events += 1
            if events == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    start = time.perf_counter()
    try:
        reused = convert(source, destination, **options).reused_shards
    except RdrrError as error:
        return Outcome(killed=False, error=error.line())
    return Outcome(False, None, events, time.perf_counter() - start, reused)


if __name__ == "__main__":
    _serve()
