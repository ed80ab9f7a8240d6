"""Measure single optimizations: one model with and without each, alternating on one device.

    python benchmarks/bench_ablations.py PACKAGE --ablation all
    python benchmarks/bench_ablations.py PACKAGE --ablation gate-up-fusion --package fused=OTHER

Some ablations need the same model converted with other options; give those packages with
`--package NAME=PATH` under the names `column`, `flat` and `fused`. An ablation that cannot run is
listed with the reason. `docs/MODES.md` describes the ablations. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from _script import add_workload, finish, parse_pairs, workload
from published.ratios import show_ratios


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the ablations, print the table and return the figures."""
    from published.ablations.measure import chosen
    from published.ablations.measure import measure as measure_ablations
    from rdrr_manifests.package import open_package

    others = parse_pairs(options.other, "NAME=PATH")
    ablations = chosen(options.ablation.split(","))
    packages = {name: open_package(path) for name, path in others.items()}
    figures = measure_ablations(
        {"": open_package(options.package), **packages},
        ablations,
        workload(options),
        adapter=options.adapter,
    ).as_dict()
    show(figures)
    return figures


def show(figures: Mapping[str, Any]) -> None:
    """Print the ratios, the ablations that did not run, and the hints that were not honoured."""
    rows = figures["ablations"]
    show_ratios([row["ratio"] for row in rows if "ratio" in row])
    for row in rows:
        if "not_run" in row:
            print(f"{row['name']}: not run, {row['not_run']}")
        for line in row.get("warnings", ()):
            print(f"warning: {row['name']}: {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("package", help="a package: folder, URL or hf://org/name")
    add("--ablation", default="all", metavar="NAME[,NAME...]", help="names of ablations, or `all`")
    add(
        "--package",
        dest="other",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the same model converted with other options; may be repeated",
    )
    add_workload(parser)
    options = parser.parse_args(arguments)
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
