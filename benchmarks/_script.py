"""What benchmark scripts share: options of a workload, tables, and how a script ends.

A script prints what it likes for people; its last line is one JSON object. Wrong usage and bad data
are one line on stderr, with the exit codes of `rdrr`.
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


def add_workload(parser: argparse.ArgumentParser, *, repeat: int = 5) -> None:
    """Add the options that size a workload and choose the adapter."""
    sizes = Workload()
    add = parser.add_argument
    add("--prompt-tokens", type=_at_least(1), default=sizes.prompt_tokens, metavar="N")
    add("--tokens", type=_at_least(2), default=sizes.tokens, metavar="N", help="new tokens")
    add("--repeat", type=_at_least(1), default=repeat, metavar="N", help="rounds")
    add_adapter(parser)


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses the adapter."""
    parser.add_argument("--adapter", metavar="NAME", help="part of an adapter's name")


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options of how a package is loaded."""
    add = parser.add_argument
    add("--kernel-hint", action="append", default=[], metavar="KEY=VALUE", help="repeatable")
    add("--kv-dtype", choices=("f16", "f32", "q8_0"), default="f16")


def workload(options: argparse.Namespace) -> Workload:
    """Return the workload that the options of `add_workload` describe."""
    return Workload(options.prompt_tokens, options.tokens, options.repeat)


def loaded_as(options: argparse.Namespace) -> LoadedAs:
    """Return how the options of `add_loading` load a package.

    Raises:
        UsageError: A kernel hint is not KEY=VALUE.
    """
    return LoadedAs(parse_pairs(options.kernel_hint, "KEY=VALUE"), options.kv_dtype)


def parse_pairs(words: Iterable[str], form: str) -> dict[str, str]:
    """Return words of the form `NAME=VALUE` as a mapping.

    Args:
        words: The words as given on the command line.
        form: Their form, for the message.

    Raises:
        UsageError: A word has no `=`, no name or no value.
    """
    pairs = [word.partition("=") for word in words]
    for parts in pairs:
        if not all(parts):
            raise UsageError("wrong word on the command line", expected=form, found="".join(parts))
    return {name: value for name, _, value in pairs}


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings, all columns but the first aligned to the right."""
    cells = [[*headings], *([str(one) for one in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        aligned = (f"{one:>{width}}" for one, width in zip(others, widths[1:], strict=True))
        print("  ".join((f"{first:<{widths[0]}}", *aligned)).rstrip())


def keep_busy(run: Callable[[], object], seconds: float) -> None:
    """Repeat `run` for some seconds: an idle GPU needs a while to raise its clocks."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def prepare_environment() -> None:
    """Set what drivers expect of a desktop session."""
    # Mesa's drivers complain, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())


def finish(measure: Callable[[], dict[str, Any]]) -> int:
    """Measure, print the result as one JSON object on the last line, and return the exit code."""
    prepare_environment()
    try:
        found = measure()
    except RdrrError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found))
    return 0


def _at_least(least: int) -> Callable[[str], int]:
    def integer(word: str) -> int:
        value = int(word)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return integer
