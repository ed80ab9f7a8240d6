"""Measure single kernels: the matrix products of a shape, and pairs of kernels for the same work.

    python benchmarks/bench_kernels.py --shape gemma3-1b

The bandwidth of each product is compared with that of a memory copy. Without `--shape` only the
pairs are measured: kernels of this runtime against each other and against those of published
systems (`benchmarks/published/kernels`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from _script import add_adapter, finish, table
from published.ratios import show_ratios


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables and return the figures."""
    from published.kernels.pairs import pairs
    from published.kernels.products import products

    given = {"adapter": options.adapter, "repeat": options.repeat}
    figures = products(options.shape, **given) if options.shape is not None else {}
    compared = pairs(**given)
    print(compared["adapter"])
    if figures:
        print(f"a memory copy moves {figures['copy_gigabytes_per_second']:,.1f} GB/s")
        headings = ("matrix", "rows", "kernel", "us", "GB/s", "GFLOP/s", "of a copy")
        table(headings, [_cells(product) for product in figures["products"]])
    show_ratios(compared["ratios"])
    return compared | figures


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    head = (f"{row['matrix']} {row['n']} x {row['k']}", str(row["rows"]), str(row["kernel"]))
    if "not_run" in row:
        return (*head, "not run", "", "", str(row["not_run"]))
    return (
        *head,
        f"{row['microseconds']['median']:,.1f}",
        f"{row['gigabytes_per_second']:,.1f}",
        f"{row['gigaflops']:,.0f}",
        f"{100 * row['share_of_copy']:.1f} %",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", metavar="NAME", help="measure the matrices of this shape of shapes.py")
    add("--repeat", type=int, default=5, metavar="N", help="measurements of each kernel")
    add_adapter(parser)
    options = parser.parse_args(arguments)
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
