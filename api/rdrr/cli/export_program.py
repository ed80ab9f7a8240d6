"""`rdrr export-program`: write what runs a package on a kind of device as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import console, facts, print_json
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import CapabilitiesFile, JsonFlag, PackagePath, QuietFlag


@with_flags
def export_program(
    path: PackagePath,
    out: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)
    ],
    *,
    load: Annotated[LoadOptions, Only("adapter", "kernel_hints", "kv_dtype", "follow_links")],
    capabilities: CapabilitiesFile = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Largest context that the program serves; by default that of the model.",
        ),
    ] = None,
    shaders: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the shaders, which programs share; by default they are in the file.",
        ),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Add a pass for the logits behind each token.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """Write the shaders, passes and load steps of a package, which any player of programs can run.

    No weights are read, so a manifest without its shards is enough.
    """
    from rdrr import _program

    written = _program.export_program(
        path,
        out,
        adapter=load.adapter,
        capabilities=capabilities,
        kernel_hints=load.kernel_hints,
        kv_dtype=load.kv_dtype,
        max_context=max_context,
        shaders=shaders,
        scores=scores,
        overwrite=overwrite,
        follow_links=load.follow_links,
    )
    if json:
        print_json(written.as_dict())
    elif not quiet:
        program = written.program
        least, most = program.contexts.least, program.contexts.most
        sizes = format_size(written.size), format_size(written.compressed)
        needs = (*program.needs.features, *program.needs.language)
        rows = [
            ("program", out),
            ("contexts", f"{least:,} to {most:,}" if most > least else f"{least:,}"),
            ("kernels", f"{len(program.kernels)} with {len(program.shaders)} shaders"),
            *([] if shaders is None else [("shaders", f"{written.new_shaders} new in {shaders}")]),
            ("needs", ", ".join(needs) or "nothing beyond WebGPU's defaults"),
            ("size", "{}, {} compressed by gzip".format(*sizes)),
        ]
        console().print(facts(rows))
    return 0
