"""What the commands that read a text with a model share: the text, and a bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.errors import StoreError, UsageError

from rdrr.cli._console import console

if TYPE_CHECKING:
    from rdrr.evaluate import ProgressCallback


def read_text(path: Path) -> str:
    """The content of a file.

    Raises:
        UsageError: It is no text in UTF-8.
        StoreError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("not a text in UTF-8", where=path, found=error.reason) from error
    except OSError as error:
        raise StoreError("the text cannot be read", where=path, found=error.strerror) from error


@contextmanager
def window_progress(*, hidden: bool) -> Iterator[ProgressCallback | None]:
    """A bar on stderr; nothing where nobody is looking."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bars:
        task = bars.add_task("tokens", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
