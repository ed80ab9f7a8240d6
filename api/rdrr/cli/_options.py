"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rdrr_format.options import options_of, split_pairs
from rdrr_runtime.decode.interval import Interval, check_interval

from rdrr._load_options import LoadOptions
from rdrr.cli._invocation import READS_LOCATION

PackagePath: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The package: a folder, a URL, hf://org/name or org/name on the hub.",
        show_default=False,
    ),
    READS_LOCATION,
]
PackagePaths: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="The packages: folders, URLs, hf://org/name or org/name on the hub.",
        show_default=False,
    ),
    READS_LOCATION,
]
JsonFlag: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object.")
]
QuietFlag: TypeAlias = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
_LOAD = options_of(LoadOptions)
FollowLinksFlag: TypeAlias = Annotated[
    bool, typer.Option("--follow-links", help=_LOAD["follow_links"].help)
]
CapabilitiesFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--capabilities",
        metavar="FILE",
        help="Plan for the device that a file describes, without a GPU: an object "
        "`capabilities` as `rdrr devices --json` prints it.",
    ),
]
ContextShift: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="When the context is full, keep the first N tokens, drop the older half of the others "
        "and continue; without this option the text ends there.",
    ),
]


def read_interval(word: str) -> Interval:
    """Return the value of `--interval`.

    Raises:
        UsageError: It is neither `auto` nor a whole number from 1 on.
    """
    interval: Any = word
    with suppress(ValueError):
        interval = int(word)
    check_interval(interval, "--interval")
    checked: Interval = interval
    return checked


IntervalFlag: TypeAlias = Annotated[
    Any,  # typer knows no unions
    typer.Option(
        "--interval",
        parser=read_interval,
        metavar="auto|N",
        help="Tokens between two readbacks from the GPU; auto chooses up to 8 by the measured "
        "speed, so that text comes steadily.",
    ),
]
WindowTokens: TypeAlias = Annotated[
    int, typer.Option(min=2, help="Tokens per window; each window starts with an empty context.")
]
TextTokens: TypeAlias = Annotated[
    int | None, typer.Option(min=2, help="Read only the first N tokens of the text.")
]


def split_hints(given: Sequence[str] | None) -> dict[str, str]:
    """Return `KEY=VALUE` words as a mapping; keys and values are checked where they are used.

    Raises:
        UsageError: A word has no `=`, or a key is given twice.
    """
    return split_pairs(given or (), "kernel hint")
