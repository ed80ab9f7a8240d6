"""`rdrr pull`, `rdrr list` and `rdrr rm`: packages in the cache of the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from rdrr._units import format_size
from rdrr.cli._console import console, note, print_json, table
from rdrr.cli._options import JsonFlag

_Location = Annotated[
    str,
    typer.Argument(metavar="ORG/NAME", help="The repository on the hub, or ORG/NAME@REVISION."),
]


def pull(location: _Location, *, json: JsonFlag = False) -> int:
    """Fetch a package from the Hugging Face Hub into the cache, where all commands find it."""
    from rdrr._hub_cache import pull as fetch

    package = fetch(location)
    if json:
        print_json(package.as_dict())
    else:
        note(f"{package.name}: {format_size(package.size)} in {package.path}")
    return 0


def list_packages(*, json: JsonFlag = False) -> int:
    """List the packages of the Hugging Face Hub in the cache."""
    from rdrr._hub_cache import cached_packages

    packages = cached_packages()
    if json:
        print_json({"packages": [package.as_dict() for package in packages]})
        return 0
    if not packages:
        note("there are no packages in the cache; rdrr pull ORG/NAME fetches one")
        return 0
    rows = [(package.name, package.revision[:8], format_size(package.size)) for package in packages]
    console().print(table(("package", "revision", "size"), rows, right=("size",)))
    return 0


def rm(location: _Location, *, json: JsonFlag = False) -> int:
    """Remove a package from the cache of the Hugging Face Hub."""
    from rdrr._hub_cache import remove

    freed = remove(location)
    if json:
        print_json({"name": location, "freed": freed})
    else:
        note(f"{location}: {format_size(freed)} freed")
    return 0
