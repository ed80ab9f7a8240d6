"""Helpers that the benchmark scripts share: command-line options, tables, and the exit of a script.

A script prints tables for people first; its last line is one JSON object. Wrong usage and bad data
are reported as one line on stderr, with the exit codes of `rdrr`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rdrr.bench.runs import LoadedAs, Workload
from rdrr_format.errors import RdrrError, UsageError


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add the options that set the size of a workload and choose the adapter."""
    sizes = Workload()
    add = parser.add_argument
    add(
        "--prompt-tokens",
        type=_at_least(1),
        default=sizes.prompt_tokens,
        metavar="N",
        help="tokens of the prompt",
    )
    add("--tokens", type=_at_least(2), default=sizes.tokens, metavar="N", help="tokens to generate")
    add("--repeat", type=_at_least(1), default=5, metavar="N", help="rounds to measure")
    add_adapter(parser)


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses the adapter."""
    parser.add_argument(
        "--adapter", metavar="NAME", help="use the adapter whose name contains this"
    )


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a package is loaded."""
    add = parser.add_argument
    add(
        "--kernel-hint",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="kernel hint to load the package with; may be repeated",
    )
    add("--kv-dtype", choices=("f16", "f32", "q8_0"), default="f16", help="type of the cache")


def workload(options: argparse.Namespace) -> Workload:
    """Return the workload that the options of `add_workload` describe."""
    return Workload(options.prompt_tokens, options.tokens, options.repeat)


def loaded_as(options: argparse.Namespace) -> LoadedAs:
    """Return the load options that the options of `add_loading` describe.

    Raises:
        UsageError: A kernel hint does not have the form KEY=VALUE.
    """
    return LoadedAs(parse_pairs(options.kernel_hint, "KEY=VALUE"), options.kv_dtype)


def parse_pairs(words: Iterable[str], form: str) -> dict[str, str]:
    """Parse arguments of the form `NAME=VALUE` into a mapping.

    Args:
        words: The arguments as given on the command line.
        form: The expected form, for the message.

    Raises:
        UsageError: An argument has no `=`, no name or no value.
    """
    pairs = [word.partition("=") for word in words]
    for parts in pairs:
        if not all(parts):
            raise UsageError(
                "an argument does not have the expected form", expected=form, found="".join(parts)
            )
    return {name: value for name, _, value in pairs}


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings; the first column is aligned left, the others right."""
    cells = [[*headings], *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        aligned = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        print("  ".join((f"{first:<{widths[0]}}", *aligned)).rstrip())


def keep_busy(run: Callable[[], object], seconds: float) -> None:
    """Repeat `run` for `seconds`, because an idle GPU needs a while to raise its clocks."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def prepare_environment() -> None:
    """Set the environment variables that GPU drivers expect of a desktop session."""
    # Without it Mesa's drivers print a warning for each adapter.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())


def finish(measure: Callable[[], dict[str, Any]]) -> int:
    """Call `measure`, print its result as one JSON object, and return the exit code.

    Errors of rdrr become one line on stderr.
    """
    prepare_environment()
    try:
        figures = measure()
    except RdrrError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures))
    return 0


def _at_least(least: int) -> Callable[[str], int]:
    def integer(word: str) -> int:
        value = int(word)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return integer
