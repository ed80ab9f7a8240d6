"""Progress bars, on stderr; nothing where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdrr_converter.report import ProgressCallback, ProgressEvent

    from rdrr.evaluate import ProgressCallback as WindowCallback

_LABELS = {"scan": "reading", "write": "converting", "verify": "verifying", "export": "writing"}


@contextmanager
def progress_bar(*, hidden: bool = False) -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar for each stage of a conversion; None where nobody looks."""
    if hidden:
        # The hub's client reads it when it is imported, which is later.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from rdrr.cli._console import console

    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TextColumn("{task.fields[millions]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tensor]}", style="dim"),
    )
    bars = Progress(*columns, console=console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def show(event: ProgressEvent) -> None:
        # Not before there is something to show: a download that comes first has bars of its own.
        bars.start()
        text = f"{event.done / 1e6:.1f} of {event.total / 1e6:.1f} M weights"
        if event.stage not in tasks:
            label = _LABELS.get(event.stage, event.stage)
            tasks[event.stage] = bars.add_task(
                label, total=event.total, millions=text, tensor=event.name
            )
        bars.update(
            tasks[event.stage],
            completed=event.done,
            millions=text,
            tensor=event.name,
        )

    try:
        yield show
    finally:
        bars.stop()


@contextmanager
def window_progress(*, hidden: bool) -> Iterator[WindowCallback | None]:
    """A callback that draws a bar for the tokens of a text; None where nobody looks."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    from rdrr.cli._console import console

    with Progress(console=console(stderr=True), transient=True) as bars:
        task = bars.add_task("tokens", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
