"""The commands `rdrr` and `convert-cli`. What they do is in the library; here they only speak."""

from __future__ import annotations

import os
import sys

from rdrr.cli._exit_codes import INTERRUPTED


def main() -> None:
    """Entry point of `rdrr`."""
    raise SystemExit(_start("rdrr"))


def convert_main() -> None:
    """Entry point of `convert-cli`, which is `rdrr convert`."""
    raise SystemExit(_start("convert-cli", only="convert"))


def _start(program: str, only: str | None = None) -> int:
    # The process is ours alone: threads of torch that have nothing to do leave their core to others
    # at once, instead of spinning on it. To be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from rdrr.cli.app import COMMANDS, run

        commands = [one for one in COMMANDS if only in (None, one.name)]
        return run(commands, sys.argv[1:], program=program)
    except KeyboardInterrupt:  # it came while modules were imported
        return INTERRUPTED
