"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import typer
from rdrr_format.errors import UsageError


def not_empty(path: str) -> str:
    """A path as it is given; an empty one, as of an unset variable, would be this very folder.

    Raises:
        UsageError: It is empty.
    """
    if not path:
        raise UsageError("an empty path", expected="a path or URL", hint="this folder is .")
    return path


PackagePath: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A package: folder, URL or hf://org/name.",
        show_default=False,
        callback=not_empty,
    ),
]
JsonFlag: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
KernelHints: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--kernel-hint", metavar="KEY=VALUE", help="A kernel hint; repeatable."),
]
StrictHints: TypeAlias = Annotated[
    bool, typer.Option("--strict-hints", help="A hint that is not followed is an error.")
]
Backend: TypeAlias = Annotated[
    Literal["auto", "wgpu", "cpu"],
    typer.Option(help="auto: wgpu where there is an adapter, else torch on the CPU."),
]
Adapter: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Part of an adapter's name.")
]
KvDtype: TypeAlias = Annotated[
    Literal["f16", "f32", "q8_0"], typer.Option(help="Storage of the key-value cache on the GPU.")
]
Context: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Tokens of prompt and text together.")
]
ContextShift: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Where the context is full keep the first N tokens, drop the older half of the others "
        "and go on; the text ends there without it.",
    ),
]
Temperature: TypeAlias = Annotated[
    float, typer.Option(min=0.0, help="Divides the logits; 0 takes the likeliest token.")
]
TopK: TypeAlias = Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")]
TopP: TypeAlias = Annotated[
    float | None, typer.Option(help="Draw among the likeliest that reach this probability.")
]
MinP: TypeAlias = Annotated[
    float | None, typer.Option(help="Draw among those at least this share of the likeliest.")
]
RepeatPenalty: TypeAlias = Annotated[
    float | None, typer.Option(help="Make earlier tokens less likely; 1 changes nothing.")
]
Seed: TypeAlias = Annotated[int | None, typer.Option(help="Of the draws.")]
Interval: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Tokens between two readbacks from the GPU.")
]


def split_hints(given: Sequence[str] | None) -> dict[str, str]:
    """`KEY=VALUE` words as a mapping; keys and values are checked where they are used.

    Raises:
        UsageError: A word without `=`, or a key that is given twice.
    """
    hints: dict[str, str] = {}
    for word in given or ():
        key, separator, value = word.partition("=")
        if not separator:
            raise UsageError("not a kernel hint", expected="KEY=VALUE", found=word)
        if key in hints:
            raise UsageError("kernel hint given twice", found=key)
        hints[key] = value
    return hints
