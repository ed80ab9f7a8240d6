"""Where the commands write: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rdrr_format.printing import printable

if TYPE_CHECKING:
    from rdrr_format.errors import RdrrError
    from rich.console import Console
    from rich.table import Table

    from rdrr import Model

PIPED_WIDTH = 1000
"""Columns where nobody looks: wide enough that no cell is folded."""


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; of a fixed width when that is not a terminal.

    What it prints as text holds no control characters: names and notes come from files.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else printable(text, keep="\n"), style, control)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return SafeConsole(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False)


def note(text: str) -> None:
    """One line on stderr, dimmed; for what accompanies a result but is not part of it."""
    from rich.text import Text

    console(stderr=True).print(Text(text, style="dim"), soft_wrap=True)


def announce(model: Model, name: str = "") -> None:
    """Say which backend runs a model, which hints it does not follow, and what was not checked.

    Args:
        model: That was loaded.
        name: Which one it is, where there are two.
    """
    note(f"{name}: {model.reason}" if name else model.reason)
    for line in (*model.unhonoured_hints, *model.unchecked):
        note(f"warning: {line}")


def print_json(data: Any) -> None:
    """One JSON object on stdout; on one line unless a person is reading."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    if not text.isprintable():  # such characters stand in strings only, but for the line ends
        text = "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_error(error: RdrrError, *, as_json: bool) -> None:
    """One line on stderr, or the same facts as an object on stdout."""
    from rich.text import Text

    if as_json:
        faults = [fault.as_dict() for fault in getattr(error, "faults", ())]
        print_json(error.as_dict() | ({"faults": faults} if faults else {}))
        return
    line = Text.assemble(("error: ", "bold red"), (str(error), "red"))
    console(stderr=True).print(line, soft_wrap=True)


def table(
    columns: Iterable[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> Table:
    """A plain table without a frame.

    Args:
        columns: Headings.
        rows: Cells, shown as they print.
        right: Headings of the columns that are aligned to the right.
    """
    from rich.table import Table
    from rich.text import Text

    columns, right = list(columns), set(right)
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        # In a narrow terminal the widest columns are folded first; nothing is ever cut off.
        result.add_column(name, overflow="fold")
        result.columns[-1].justify = "right" if name in right else "left"
    for row in rows:
        # Text, because names in square brackets would be read as markup.
        result.add_row(*(Text(str(cell)) for cell in row))
    return result


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one a line, without a heading."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in pairs:
        result.add_row(name, Text(str(value)))
    return result
