"""Run the commands as a user does, optionally in a process of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.deadlines import HANGS

ROOT = Path(__file__).parents[2]
COMPONENTS = ("format", "device", "manifests", "converter", "runtime", "api")
EXAMPLE = ROOT / "examples" / "small-llama"


def environment(**extra: str) -> dict[str, str]:
    """Return this process's environment, extended so that the components are importable."""
    return (
        os.environ
        | {"PYTHONPATH": os.pathsep.join(str(ROOT / component) for component in COMPONENTS)}
        | extra
    )


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Parse the JSON object on stdout; fail if stdout holds anything else."""
        return json.loads(self.out)


def rdrr(
    *words: object,
    stdin: str = "",
    program: str = "rdrr",
    extra: Mapping[str, str] | None = None,
    own_process: bool = False,
    code: int | None = None,
) -> Done:
    """Run a command line.

    Args:
        words: Arguments after the program's name.
        stdin: Text on the command's standard input.
        program: `rdrr` or `convert-cli`.
        extra: Further environment variables; they require a separate process.
        own_process: Start a separate process, as a user does. Otherwise the command runs in this
            one, which saves the time of the imports.
        code: Fail on any other exit code, if one is given.
    """
    arguments = [str(word) for word in words]
    if own_process or extra:
        done = _in_own_process(arguments, stdin, program, extra or {})
    else:
        done = _in_this_process(arguments, stdin, program)
    assert code in (None, done.code), done
    return done


def _in_own_process(
    arguments: list[str], stdin: str, program: str, extra: Mapping[str, str]
) -> Done:
    entry = {"rdrr": "main", "convert-cli": "convert_main"}[program]
    done = subprocess.run(
        [sys.executable, "-c", f"from rdrr.cli import {entry}; {entry}()", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(**extra),
        timeout=HANGS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def _in_this_process(arguments: list[str], stdin: str, program: str) -> Done:
    from rdrr.cli.app import COMMANDS, run

    commands = (
        COMMANDS
        if program == "rdrr"
        else [command for command in COMMANDS if command.name == "convert"]
    )
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(commands, arguments, program=program)
    finally:
        sys.stdin = before
    return Done(code, out.getvalue(), err.getvalue())


def error_line(done: Done, code: int | None = None) -> str:
    """Return the only line on stderr of a failed command.

    Fail on a traceback, more lines, or another exit code if one is given.
    """
    assert code in (None, done.code), done
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert "Traceback" not in done.err, done.err
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: "), done.err
    return lines[0]


_MANY = """
import dataclasses, json, sys
from support.commands import rdrr
for words in json.loads(sys.argv[1]):
    sys.stdout.write(json.dumps(dataclasses.asdict(rdrr(*words))) + "\\n")
"""


def rdrr_each(*commands: Sequence[object], **extra: str) -> list[Done]:
    """Run command lines one after the other in one separate process.

    Args:
        commands: The arguments of each command.
        extra: Further environment variables.
    """
    words = json.dumps([[str(word) for word in command] for command in commands])
    variables = environment(**extra)
    variables["PYTHONPATH"] += os.pathsep + str(ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-c", _MANY, words],
        capture_output=True,
        text=True,
        env=variables,
        timeout=HANGS,
        check=True,
    )
    return [Done(**json.loads(line)) for line in done.stdout.splitlines()]
