"""What the commands share that run a model on texts of the command line or of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rdrr_format.errors import UsageError

from rdrr._load_options import LoadOptions
from rdrr._texts import read_text
from rdrr.cli._console import announce, note
from rdrr.cli._progress import status

if TYPE_CHECKING:
    from rdrr import Model

_SHOWN = 4
"""Values of each text that are shown to people."""

Texts: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT...", help="The texts.", show_default=False)
]
Input: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE.jsonl",
        help="File of texts (.jsonl): each line is a string, or an object with `text`.",
    ),
]
Truncate: TypeAlias = Annotated[
    bool, typer.Option(help="Leave out the end of texts that do not fit the context.")
]


def texts_of(texts: Sequence[str] | None, file: Path | None) -> list[str]:
    """Return the texts of the command line, or of a file.

    Raises:
        UsageError: There are none, or both; or a line of the file holds no text.
        StoreError: The file cannot be read.
    """
    if (file is None) == (not texts):
        raise UsageError("expected texts, or --input with a file of them")
    if file is None:
        return list(texts or ())
    return [_text(line, f"{file}, line {at}") for at, line in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    # Other characters that end a line may be part of a text.
    lines = enumerate(read_text(file).split("\n"), 1)
    return ((at, line) for at, line in lines if line.strip())


def _text(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError("not JSON", where=where, found=error) from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise UsageError("no text", where=where, expected="a string, or an object with `text`")
    return text


def note_truncated(indices: Sequence[int]) -> None:
    """Say of how many texts the end was left out."""
    if indices:
        which = ", ".join(str(index + 1) for index in indices[:_SHOWN])
        more = ", ..." if len(indices) > _SHOWN else ""
        note(f"the end of {len(indices)} texts was left out: {which}{more}")


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
