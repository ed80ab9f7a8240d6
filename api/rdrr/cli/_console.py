"""Output of the commands: results go to stdout, everything else goes to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.printing import printable

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._log import is_verbose
from rdrr.cli._wording import flags_of_options, in_flags

if TYPE_CHECKING:
    from rdrr_format.errors import RdrrError
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

    from rdrr import Model

_LOG = logging.getLogger("rdrr.cli")
_FOLDED, _GAP = 8, 2
"""Smallest width of a folded cell, and the space between two cells, in columns."""
_LONG, _INDENT = 24, "  "
"""Width from which the first column has lines of its own instead of being folded, and what the
lines below them begin with."""

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
) -> TextTable:
    """Return a table without a frame that fits any width.

    Args:
        columns: Headings of the columns.
        rows: Cells of each row; they are shown as `str` gives them.
        right: Headings of the columns that are aligned to the right.
    """
    names = tuple(columns)
    cells = [tuple(printable(str(cell)) for cell in row) for row in rows]
    return TextTable(names, cells, tuple(name in set(right) for name in names))


@dataclass(frozen=True)
class TextTable:
    """A table that gives long names a line each, or folds its widest cells, in a narrow terminal.

    Attributes:
        columns: Headings of the columns.
        rows: Cells of each row.
        right: Whether a column is aligned to the right, for each.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: tuple[bool, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        """Yield what fits the width of the console."""
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        others = len(_INDENT) + sum(widths[1:]) + _GAP * (len(widths) - 2)
        folds = sum(widths) + _GAP * (len(widths) - 1) > options.max_width
        if folds and widths[0] >= _LONG and others <= options.max_width:
            yield from self._with_names_above(widths)
        else:
            yield self._folded(widths, options.max_width)

    def _with_names_above(self, widths: Sequence[int]) -> Iterator[Text]:
        from rich.text import Text

        for row in (self.columns, *self.rows):
            cells = zip(row[1:], widths[1:], self.right[1:], strict=True)
            padded = (
                cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells
            )
            line = (" " * _GAP).join(padded).rstrip()
            text = f"{row[0]}\n{_INDENT}{line}"
            yield Text(text, style="bold" if row is self.columns else "")

    def _folded(self, widths: Sequence[int], width: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        keep_numbers = self._numbers_fit(widths, width)
        result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for name, right in zip(self.columns, self.right, strict=True):
            # In a narrow terminal the widest columns are folded first; no text is cut off.
            result.add_column(name, overflow="fold", no_wrap=keep_numbers and right)
            result.columns[-1].justify = "right" if right else "left"
        for row in self.rows:
            # As Text, because a string with square brackets would be read as markup.
            result.add_row(*(Text(cell) for cell in row))
        return result

    def _numbers_fit(self, widths: Sequence[int], width: int) -> bool:
        """Return whether there is room for the numbers without folding them.

        The columns that are aligned to the right have the numbers; each of the others needs a few
        characters that its cells can be folded to.
        """
        needed = sum(
            size if right else min(size, _FOLDED)
            for size, right in zip(widths, self.right, strict=True)
        )
        return needed + _GAP * len(widths) <= width


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
