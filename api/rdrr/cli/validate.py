"""`rdrr validate`: check a package and list everything that is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rdrr_manifests.profiles import ProfileName

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import console, print_json
from rdrr.cli._options import FollowLinksFlag, JsonFlag, PackagePath
from rdrr.cli._wording import flags_of_options, in_flags

if TYPE_CHECKING:
    from rdrr_manifests.faults import Fault, ValidationReport
    from rich.text import Text

_DEPTHS = {
    "structure": "the manifest only",
    "files": "the manifest and file sizes; --deep also checks hashes and values",
    "deep": "the manifest, files, hashes and values",
}


def validate(
    path: PackagePath,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check the hashes and decode every tensor.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    profile: Annotated[
        ProfileName,
        typer.Option("--profile", help="Also apply the rules of this runtime."),
    ] = "rdrr",
    follow_links: FollowLinksFlag = False,
    json: JsonFlag = False,
) -> int:
    """Check a package, or only a manifest if PATH is one. The exit code is 1 on errors."""
    import rdrr

    report = rdrr.validate(
        path, deep=deep, strict=strict, follow_links=follow_links, profile=profile
    )
    if json:
        print_json(report.as_dict())
    else:
        _show(report)
    return 0 if report.ok() else 1


def _show(report: ValidationReport) -> None:
    from rich.text import Text

    out = console()
    for fault in report.faults:
        out.print(_fault(fault), soft_wrap=True)
    for text in report.notes:
        out.print(Text(f"note {text}", style="dim"), soft_wrap=True)
    valid = report.ok()
    verdict = Text("valid" if valid else "not valid", style="bold green" if valid else "bold red")
    out.print(Text.assemble(verdict, " ", summary(report)), soft_wrap=True)


def summary(report: ValidationReport) -> str:
    """Return one line with what was checked, how thoroughly, and the number of faults."""
    facts = report.facts or {}
    parts = [
        _count(facts[name], name.removesuffix("s"))
        for name in ("shards", "tensors")
        if name in facts
    ]
    if "bytes" in facts:
        parts.append(format_size(facts["bytes"]))
    counts = ((len(report.errors), "error"), (len(report.warnings), "warning"))
    parts += [_count(number, word) for number, word in counts if number]
    name = report.model_id or report.where
    if report.model_id and not report.runnable:
        parts.append("not runnable with this version of rdrr")
    return f"{name}: {', '.join(parts)} (checked: {_DEPTHS[report.level]})"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _fault(fault: Fault) -> Text:
    from rich.text import Text

    line = in_flags(fault.line(), flags_of_options(LoadOptions))
    style = "red" if fault.severity == "error" else "yellow"
    head = len(fault.severity)
    return Text.assemble((line[:head], f"bold {style}"), line[head:])
