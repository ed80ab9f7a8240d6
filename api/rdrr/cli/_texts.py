"""What the commands share that run a model on the texts of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from rdrr._load_options import LoadOptions
from rdrr.cli._console import announce
from rdrr.cli._progress import status

if TYPE_CHECKING:
    from rdrr import Model

_SHOWN = 4
"""Values of each text that are shown to people."""

Texts: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="The texts.", show_default=False)
]


@contextmanager
def open_model(path: str, load: LoadOptions, *, hidden: bool) -> Iterator[Model]:
    """Open a model until the end of the block, and announce it.

    Args:
        path: The package.
        load: Its options.
        hidden: Show no status while it is loaded, as under `--json`.
    """
    import rdrr

    with status("loading the model", hidden=hidden):
        opened = rdrr.load(path, options=load)
    with opened as model:
        announce(model, path)
        yield model


def first_of(values: Sequence[str]) -> str:
    """Return the first values of a text in one line, with dots if there are more."""
    more = ", ..." if len(values) > _SHOWN else ""
    return ", ".join(values[:_SHOWN]) + more
