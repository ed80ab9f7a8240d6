"""`rdrr convert` and `convert-cli`: a checkpoint becomes a package."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A checkpoint's folder.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="Folder to make.")],
    quantize: Annotated[Literal["q4_k_m", "q8_0", "f16", "f32"], typer.Option()] = "q4_k_m",
) -> int:
    """Make a package from a checkpoint."""
    import rdrr

    rdrr.convert(source, destination, quantize=quantize)
    return 0
