"""The commands `rdrr` and `convert-cli`. What they do is in the library; here they only speak."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `rdrr`."""
    from rdrr.cli.app import COMMANDS, run

    raise SystemExit(run(COMMANDS, sys.argv[1:], program="rdrr"))


def convert_main() -> None:
    """Entry point of `convert-cli`, which is `rdrr convert`."""
    from rdrr.cli.app import COMMANDS, run

    only = [command for command in COMMANDS if command.name == "convert"]
    raise SystemExit(run(only, sys.argv[1:], program="convert-cli"))
