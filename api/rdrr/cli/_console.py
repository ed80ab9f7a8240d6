"""Output of the commands: results go to stdout, everything else goes to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from rdrr_format.printing import printable

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._log import is_verbose
from rdrr.cli._wording import flags_of_options, in_flags

if TYPE_CHECKING:
    from rdrr_format.errors import RdrrError
    from rich.console import Console
    from rich.table import Table

    from rdrr import Model

_LOG = logging.getLogger("rdrr.cli")
_FOLDED, _GAP = 8, 2
"""Smallest width of a folded cell, and the space between two cells, in columns."""

PIPED_WIDTH = 1000
"""Width in columns when the output is not a terminal: wide enough that no cell is folded."""


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr; its width is fixed when that is not a terminal.

    Control characters in printed text are escaped, because names and notes come from files that
    could otherwise control the terminal. Each text that is printed is one line, so that none of
    them can forge a line; tables escape the line ends of their cells themselves.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*map(_one_line, objects), **options)

        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else printable(text, keep="\n"), style, control)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return SafeConsole(
        stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False, markup=False
    )


def _one_line(printed: Any) -> Any:
    """Return a text with its line ends escaped, and anything else as it is."""
    from rich.text import Text

    if isinstance(printed, Text) and not printed.plain.isprintable():
        return Text(printable(printed.plain), style=printed.style)
    return printable(printed) if isinstance(printed, str) else printed


def heading(out: Console, title: str) -> None:
    """Print an empty line and a heading."""
    from rich.text import Text

    out.print()
    out.print(Text(title, style="bold cyan"))


def note(text: str) -> None:
    """Print one dimmed line on stderr that accompanies a result but is not part of it."""
    from rich.text import Text

    console(stderr=True).print(Text(text, style="dim"), soft_wrap=True)


def note_stopped(error: BaseException) -> None:
    """Print that Ctrl-C stopped the command, and what notes of the exception say is left."""
    if sys.stderr.isatty():  # it shows ^C at the cursor, which may be in the middle of a line
        console(stderr=True).print()
    note("; ".join(("stopped", *getattr(error, "__notes__", ()))))


def announce(model: Model, name: str = "") -> None:
    """Print which backend runs a model, which hints are not honoured and what was not checked.

    With `-v` the chosen kernels, the reasons and the allocated memory follow.

    Args:
        model: The loaded model.
        name: Its name, where a command loads two models.
    """
    flags = flags_of_options(LoadOptions)
    reason = in_flags(model.reason, flags)
    note(f"{name}: {reason}" if name else reason)
    for line in (*model.unhonoured_hints, *model.unchecked):
        note(f"warning: {in_flags(line, flags)}")
    if is_verbose():
        _log_details(model)


def _log_details(model: Model) -> None:
    from rdrr._explanation import grouped

    info = model.info
    kernels: dict[str, list[str]] = {}
    for decision in info.decisions:
        kernels.setdefault(decision.reason, []).append(decision.kernel)
    for reason, names in kernels.items():
        _LOG.info("%s: %s", ", ".join(dict.fromkeys(names)), reason)
    for group in grouped(info.decisions):
        for row in group.rows:
            _LOG.debug("%s, %s: %s (%s)", group.title, row.op, row.kernel, row.reason)
    _LOG.info(
        "allocated: %s of weights, %s of key-value cache for %d tokens",
        format_size(info.weights_bytes),
        format_size(info.kv_bytes),
        info.context,
    )


def print_json(data: Any) -> None:
    """Print a JSON object on stdout, on one line unless stdout is a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)
    if not text.isprintable():  # apart from line ends they occur within strings only
        text = "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_error(error: RdrrError, *, as_json: bool) -> None:
    """Print an error as one line on stderr, or as a JSON object on stdout."""
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
    """Return a table without a frame that fits any width by folding its widest cells.

    Args:
        columns: Headings of the columns.
        rows: Cells of each row; they are shown as `str` gives them.
        right: Headings of the columns that are aligned to the right.
    """
    from rich.table import Table
    from rich.text import Text

    columns, right = list(columns), set(right)
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    keep_numbers = _numbers_fit(columns, widths, right)
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for name in columns:
        # In a narrow terminal the widest columns are folded first; no text is cut off.
        result.add_column(name, overflow="fold", no_wrap=keep_numbers and name in right)
        result.columns[-1].justify = "right" if name in right else "left"
    for row in texts:
        # As Text, because a string with square brackets would be read as markup.
        result.add_row(*(Text(cell) for cell in row))
    return result


def _numbers_fit(columns: Sequence[str], widths: Sequence[int], right: set[str]) -> bool:
    """Return whether the terminal has room for the numbers of a table without folding them.

    The columns that are aligned to the right have the numbers; each of the others needs a few
    characters that its cells can be folded to.
    """
    needed = sum(
        width if name in right else min(width, _FOLDED)
        for name, width in zip(columns, widths, strict=True)
    )
    return needed + _GAP * len(columns) <= get_terminal_size().columns


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return a table of names and values, one pair per line, without headings."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in pairs:
        result.add_row(Text(printable(name)), Text(printable(str(value))))
    return result
