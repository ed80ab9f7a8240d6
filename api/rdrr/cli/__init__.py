"""The commands `rdrr` and `convert-cli`: they parse arguments, call the library and print results.

Whatever computes anything is in the library, so that Python programs can do the same.
"""

from __future__ import annotations

import gc
import os
import sys

from rdrr.cli._exit_codes import INTERRUPTED


def main() -> None:
    """Run `rdrr`."""
    raise SystemExit(_start("rdrr"))


def convert_main() -> None:
    """Run `convert-cli`, which is `rdrr convert` as a program of its own."""
    raise SystemExit(_start("convert-cli", only="convert"))


def _start(program: str, only: str | None = None) -> int:
    # Idle threads of torch would spin and take the core from other processes. OpenMP reads this
    # variable when torch is loaded, so it is set before. A library must not do this; a program may.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Nearly all that a command creates until it is at work stays: modules, plans, shaders. To look
    # at it again and again for garbage takes a sixteenth of the time to the first token.
    gc.set_threshold(10_000)
    try:
        from rdrr.cli.app import COMMANDS, run

        commands = [command for command in COMMANDS if only in (None, command.name)]
        return run(commands, sys.argv[1:], program=program)
    except KeyboardInterrupt:  # Ctrl-C while modules were imported
        return INTERRUPTED
