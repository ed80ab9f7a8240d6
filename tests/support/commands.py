"""Running the commands as a user does: in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPONENTS = ("format", "manifests", "converter", "runtime", "api")
EXAMPLE = ROOT / "examples" / "small-llama"
TIMEOUT_SECONDS = 300


def environment(**extra: str) -> dict[str, str]:
    """This process's environment, in which the components are found without being installed."""
    return (
        os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / one) for one in COMPONENTS)} | extra
    )


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The object on stdout; anything else there makes this fail."""
        return json.loads(self.out)


def rdrr(
    *words: object,
    stdin: str = "",
    extra: Mapping[str, str] | None = None,
    program: str = "main",
) -> Done:
    """Run `rdrr WORDS...` (with `program="convert_main"`, `convert-cli WORDS...`)."""
    call = f"from rdrr.cli import {program}; {program}()"
    done = subprocess.run(
        [sys.executable, "-c", call, *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(**(extra or {})),
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def error_line(done: Done) -> str:
    """The one line on stderr of a command that failed as it should: no traceback, no more lines."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert "Traceback" not in done.err, done.err
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: "), done.err
    return lines[0]
