"""Conversions in processes that are killed: at a time, or at one of their dealings with files.

One process imports the converter and compiles the codecs once; it forks for every conversion, so
that a conversion starts at once and its death costs nothing.
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

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
"""Audit events of a process that changes files; renaming and replacing are one."""


@dataclass(frozen=True)
class Outcome:
    """How a conversion ended.

    Attributes:
        killed: By SIGKILL.
        error: Message of the error it ended with.
        events: Dealings with files that it had.
        seconds: How long it ran.
        reused: Shards it did not write.
    """

    killed: bool
    error: str | None = None
    events: int = 0
    seconds: float = 0.0
    reused: int = 0


class Converters:
    """The process that forks; a context manager."""

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
        self._process.communicate(timeout=60)

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
            source: As of `convert`.
            destination: As of `convert`.
            kill_after: Seconds after which it is killed.
            kill_at: Dealing with files before which it is killed, counted from 1.
            options: As of `convert`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = [str(source), str(destination), options, kill_after, kill_at]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


def _serve() -> None:
    """Take orders from stdin until it ends; the first is also carried out here, to compile."""
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
