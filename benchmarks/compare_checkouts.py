"""Compare the decode, prefill, batch and load speed of two checkouts of rdrr, in alternation.

    git worktree add ../before COMMIT
    python benchmarks/compare_checkouts.py ../before . --case llama-1b:q4_k_m:row,column

Each checkout runs its own `bench_decode.py` on the same packages, which the first one makes. The
order is reversed in every second round, so that a machine that slows down slows both. The table
shows medians over the rounds, and the ratio of the second checkout to the first. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from _script import table

COMPONENTS = ("format", "device", "manifests", "converter", "runtime", "api", "benchmarks")
MEASURED = ("prefill", "decode", "far", "load_seconds")

Found = dict[tuple[str, ...], dict[int, list[float]]]
"""Measured values by (shape, quantization, package, figure), then by index of the checkout."""


def run(tree: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a checkout's `bench_decode.py` and return its JSON object.

    Raises:
        SystemExit: The script failed.
    """
    given = os.environ.get("PYTHONPATH")
    folders = [*(str(tree / component) for component in COMPONENTS), *([given] if given else [])]
    done = subprocess.run(
        [sys.executable, str(tree / "benchmarks" / "bench_decode.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: bench_decode.py failed:\n{done.stderr[-1000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def values(figures: dict[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the values of a run, each with its key (package, figure)."""
    for name, row in figures["rates"].items():
        for key in MEASURED:
            if key in row:
                value = row[key]
                yield (name, key), value[0] if isinstance(value, list) else value
    for name, rows in figures["batches"].items():
        for size, row in rows.items():
            yield (name, f"batch of {size}"), row["tokens_per_second"][0]


def compare(options: argparse.Namespace, work: Path) -> Found:
    """Run both checkouts alternately and return what they measured."""
    samples: Found = {}
    for case in options.case:
        shape, quantize, layouts = case.split(":")
        arguments = ["--shape", shape, "--quantize", quantize, "--layouts", layouts]
        arguments += ["--repeat", "3", "--work", str(work)]
        arguments += ["--context", str(options.context)] if options.context else []
        for number in range(options.rounds):
            more = ["--batch", options.batch] if options.batch and not number else []
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                measured = run((options.before, options.after)[index], [*arguments, *more])
                for key, value in values(measured):
                    samples.setdefault((shape, quantize, *key), {}).setdefault(index, []).append(
                        value
                    )
    return samples


def show(samples: Found) -> dict[str, list[float]]:
    """Print the table; return [before, after, ratio] by the name of the row."""
    rows: dict[str, list[float]] = {}
    for key, taken in samples.items():
        before, after = (median(taken[index]) for index in (0, 1))
        rows[" ".join(key)] = [before, after, round(after / before, 3)]
    cells = [(name, *(f"{value:,.3f}" for value in row)) for name, row in rows.items()]
    table(("", "before", "after", "after / before"), cells)
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("before", type=Path, help="folder of a checkout of rdrr")
    add("after", type=Path, help="folder of the checkout to compare with it")
    add(
        "--case",
        action="append",
        required=True,
        help="SHAPE:QUANTIZATION:LAYOUT[,LAYOUT]; may be repeated",
    )
    add("--rounds", type=int, default=2, help="runs of each checkout")
    add("--batch", metavar="N,N", help="also decode batches of N sequences, in the first round")
    add("--context", type=int, default=0, help="also decode after this many cached tokens")
    add("--work", type=Path, help="folder that keeps the packages; a temporary one by default")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the command line."""
    options = parse()
    with ExitStack() as stack:
        work = options.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        rows = show(compare(options, work))
    print(json.dumps({"benchmark": "checkouts", "rows": rows}))


if __name__ == "__main__":
    main()
