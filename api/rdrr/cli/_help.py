"""The list of commands in `rdrr --help`, under headings, each with its whole first sentence.

The help of a single command is written by typer and not changed here.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from typer.core import TyperGroup

_WHOLE = 1000


class GroupedCommands(TyperGroup):
    """A group that lists its commands under their headings, in the order of registration."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the headings and their commands; long sentences are folded instead of cut off."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        wide = max(len(name) for name, _ in commands)
        for heading, members in groupby(commands, key=lambda pair: _heading(pair[1])):
            with formatter.section(heading):
                formatter.write_dl(
                    # Padded to one width, so that all sentences begin in the same column.
                    [(name.ljust(wide), _sentence(command)) for name, command in members]
                )


def _heading(command: Any) -> str:
    return str(command.rich_help_panel)


def _sentence(command: Any) -> str:
    return str(command.get_short_help_str(_WHOLE)).rstrip(".")
