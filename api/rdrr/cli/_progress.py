"""Progress bars and status lines on stderr; there are none unless stderr is a terminal.

With `-v` the lines of the log take their place.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rdrr_format.printing import printable

from rdrr.cli._log import is_verbose, listening

if TYPE_CHECKING:
    from rdrr_converter.progress import ProgressCallback, ProgressEvent
    from rich.progress import Progress, TaskID

    from rdrr.evaluate import ProgressCallback as WindowCallback

_LOG = logging.getLogger("rdrr.cli")
_LABELS = {"scan": "reading", "write": "converting", "verify": "verifying", "export": "writing"}
_COMPILING = "compiling codecs"
_CODECS = ("rdrr_format.codecs",)
_WIDE = 90
"""Terminal width in columns from which a bar also shows the remaining time and the tensor."""


@contextmanager
def progress_bar(*, hidden: bool = False) -> Iterator[ProgressCallback | None]:
    """Yield a callback that draws a bar for each stage of a conversion.

    Args:
        hidden: Show nothing, as under `--quiet` and `--json`.

    Yields:
        The callback, or None where nothing is to be shown.
    """
    if hidden:
        # The hub's client reads this variable when it is imported, which happens later.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if is_verbose():
        yield _StageLog().show
        return
    if hidden or not sys.stderr.isatty():
        yield None
        return
    stages = _StageBars()
    try:
        with listening(_Calls(stages.compiling), logging.DEBUG, _CODECS):
            yield stages.show
    finally:
        stages.stop()


class _StageBars:
    """A bar for each stage of a conversion, and a line while codecs are compiled."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        from rdrr.cli._console import console

        out = console(stderr=True)
        columns: list[ProgressColumn] = [
            TextColumn("{task.description:>10}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=40 if out.width >= _WIDE else 12),
            TextColumn("{task.fields[weights]}", table_column=Column(no_wrap=True)),
        ]
        if out.width >= _WIDE:
            name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
            columns += [
                TimeRemainingColumn(),
                TextColumn("{task.fields[tensor]}", "dim", markup=False, table_column=name),
            ]
        self._bars: Progress = Progress(*columns, console=out, transient=True)
        self._stages: dict[str, TaskID] = {}
        self._codecs: TaskID | None = None

    def show(self, event: ProgressEvent) -> None:
        """Move the bar of an event's stage."""
        # Started late, because a download that comes first draws bars of its own.
        self._bars.start()
        if self._codecs is not None:
            self._bars.update(self._codecs, visible=False)
        fields: dict[str, Any] = {
            "weights": f"{event.done / 1e6:.1f} of {event.total / 1e6:.1f} M weights",
            "tensor": printable(event.name),
        }
        if event.stage not in self._stages:
            label = _LABELS.get(event.stage, event.stage)
            self._stages[event.stage] = self._bars.add_task(label, total=event.total, **fields)
        self._bars.update(self._stages[event.stage], completed=event.done, **fields)

    def compiling(self, message: str) -> None:
        """Show that codecs are compiled, until the next event of a stage."""
        del message
        self._bars.start()
        if self._codecs is None:
            self._codecs = self._bars.add_task(
                _COMPILING, total=None, weights="on first use only", tensor=""
            )
        self._bars.update(self._codecs, visible=True)

    def stop(self) -> None:
        """Remove the bars from the terminal."""
        self._bars.stop()


class _StageLog:
    """Logs how long each stage of a conversion took."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def show(self, event: ProgressEvent) -> None:
        """Log a stage when its last event comes."""
        if event.done >= event.total:
            now = time.perf_counter()
            label = _LABELS.get(event.stage, event.stage)
            _LOG.info("%s took %.2f s", label, now - self._start)
            self._start = now


@contextmanager
def window_progress(*, hidden: bool) -> Iterator[WindowCallback | None]:
    """Yield a callback that draws a bar for the tokens of a text.

    Args:
        hidden: Show nothing, as under `--json`.

    Yields:
        The callback, or None where nothing is to be shown.
    """
    if hidden or is_verbose() or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    from rdrr.cli._console import console

    with Progress(console=console(stderr=True), transient=True) as bars:
        task = bars.add_task("tokens", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def status(text: str, *, hidden: bool = False) -> Iterator[None]:
    """Show a status line for the length of a block.

    Messages that the components log in the block, such as `compiling shaders (3 of 17)`, replace
    the text.

    Args:
        text: The status at the beginning, such as `loading the model`.
        hidden: Show nothing, as under `--json`.
    """
    _LOG.info("%s", text)
    if hidden or is_verbose() or not sys.stderr.isatty():
        yield
        return
    from rich.text import Text

    from rdrr.cli._console import console

    with console(stderr=True).status(Text(text, style="dim")) as line:

        def show(message: str) -> None:
            line.update(Text(printable(message), style="dim"))

        with listening(_Calls(show), logging.DEBUG):
            yield


def with_status(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces of text, and show a status line until the first piece arrives."""
    rest = iter(pieces)
    with status("reading the prompt"):
        first = next(rest, None)
    if first is not None:
        yield first
        yield from rest


class _Calls(logging.Handler):
    """Calls a function with the message of each record."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())
