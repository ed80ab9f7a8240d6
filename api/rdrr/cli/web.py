"""`rdrr web`: write what runs a package in browsers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import JsonFlag, PackagePath, QuietFlag


@with_flags
def web(
    path: PackagePath,
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="The folder to write; by default `web` in the folder of the package.",
            show_default=False,
        ),
    ] = None,
    *,
    load: Annotated[LoadOptions, Only("kernel_hints", "kv_dtype", "follow_links")],
    page: Annotated[
        bool, typer.Option("--page", help="Write a page too, which any static host serves.")
    ] = False,
    target: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Plan for the device that a file describes, as `--capabilities` of `explain` "
            "does, in place of the usual kinds (repeatable, the best first).",
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Largest context that the programs serve; by default that of the model.",
        ),
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """Write the programs that run a package in browsers, and an index of them.

    No weights are read, and nothing of the package changes. What an earlier call wrote is replaced.
    """
    from rdrr import _web

    written = _web.web(
        path,
        directory,
        page=page,
        targets=target or (),
        kernel_hints=load.kernel_hints,
        kv_dtype=load.kv_dtype,
        max_context=max_context,
        follow_links=load.follow_links,
    )
    if json:
        print_json(written.as_dict())
    elif not quiet:
        rows = [("directory", str(written.directory)), ("package", written.package)]
        for program in written.programs:
            size = f"{format_size(program.size)}, {format_size(program.compressed)} by gzip"
            rows.append((program.file, f"{size}; {'; '.join(program.targets)}"))
        rows += [
            (tower.file, f"{format_size(tower.compressed)} by gzip; for images")
            for tower in written.towers
        ]
        if written.page:
            together = format_size(sum(written.page.values()))
            rows.append(("page", f"{len(written.page)} files, together {together} by gzip"))
        console().print(facts(rows))
    return 0
