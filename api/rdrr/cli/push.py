"""`rdrr push`: upload a package to the Hugging Face Hub, with a model card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rdrr._units import format_size
from rdrr.cli._console import console, print_json, table
from rdrr.cli._options import FollowLinksFlag, JsonFlag

if TYPE_CHECKING:
    from rdrr._push import Pushed


def push(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of the package.", show_default=False)
    ],
    location: Annotated[
        str,
        typer.Argument(metavar="ORG/NAME", help="The repository on the hub, or ORG/NAME@BRANCH."),
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as a private one.")
    ] = False,
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="ORG/NAME", help="The model it was converted from, for the model card."
        ),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Commit message.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the model card and the files, and upload nothing."),
    ] = False,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Check every byte of a package, then upload it to the Hugging Face Hub in one commit."""
    import rdrr

    pushed = rdrr.push(
        path,
        location,
        private=private,
        base_model=base_model,
        message=message,
        dry_run=dry_run,
        follow_links=follow_links,
    )
    if json:
        print_json(pushed.as_dict())
    else:
        _show(pushed)
    return 0


def _show(pushed: Pushed) -> None:
    from rich.text import Text

    out = console()
    if pushed.url is None:
        for line in pushed.card.split("\n"):
            out.print(line, soft_wrap=True)
    rows = [(name, format_size(size)) for name, size in pushed.files.items()]
    out.print(table(("file", "size"), rows, right=("size",)))
    verb = "would be uploaded" if pushed.url is None else f"uploaded in {pushed.url}"
    total = format_size(sum(pushed.files.values()))
    line = f"{pushed.location}: {len(pushed.files)} files, {total}, {verb}"
    out.print(Text(line, style="bold green"), soft_wrap=True)
