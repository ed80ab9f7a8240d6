"""`rdrr hints`: show or change the kernel hints of a package; the shards stay untouched."""

from __future__ import annotations

from typing import Annotated

import typer

from rdrr.cli._console import console, facts, note, print_json
from rdrr.cli._options import FollowLinksFlag, JsonFlag, PackagePath, split_hints


def hints(
    path: PackagePath,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Hints to write into the manifest; KEY=auto and KEY= remove a hint.",
            show_default=False,
        ),
    ] = None,
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Show the kernel hints of a package, or change them in place."""
    from rdrr_manifests.editing import set_hints
    from rdrr_manifests.package import open_package

    wanted = split_hints(changes)
    before = open_package(path, follow_links=follow_links).manifest.kernel_hints
    changed = set_hints(path, wanted, follow_links=follow_links) if wanted else ()
    after = before
    if changed:
        after = open_package(path, follow_links=follow_links).manifest.kernel_hints
    stated = after.model_dump(by_alias=True, exclude_none=True)
    if json:
        print_json({"kernelHints": stated, "changed": list(changed)})
        return 0
    console().print(facts(stated.items()))
    if wanted:
        note(
            f"changed: {', '.join(changed)}"
            if changed
            else "nothing changed: the package has these hints already"
        )
    return 0
