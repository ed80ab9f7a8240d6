"""Measure the decode modes of published systems alternately, with the same kernels and model.

    python benchmarks/bench_modes.py PACKAGE --mode all

`docs/MODES.md` describes the modes. Ratios are taken round by round. All modes must generate the
same token ids, and their kernels must take the same GPU time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from _script import add_loading, add_workload, finish, loaded_as, table, workload
from published.modes.table import GROUPS, MODES
from published.ratios import show_ratios

GPU_COLUMNS: Mapping[str, str] = MappingProxyType(
    {"GPU ms": "gpu_ms_per_token", "of kernels": "gpu_kernels_ms_per_token"}
)
"""Columns of GPU time in the table: heading and JSON key."""

COUNTED: Mapping[str, str] = MappingProxyType(
    {
        "dispatches": "dispatches",
        "submits": "submits",
        "buffers": "buffer_creates",
        "bind groups": "bind_group_creates",
        "maps": "maps",
        "written B": "bytes_written",
        "read B": "bytes_read",
    }
)
"""Columns of counters in the table, each per token: heading and JSON key."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compare the modes, print the tables and return the figures."""
    from published.modes.comparison import compare
    from published.modes.table import chosen
    from rdrr_manifests.package import open_package

    modes = chosen(options.mode.split(","), submit=options.submit, sampler=options.sampler)
    figures = compare(
        open_package(options.package),
        modes,
        workload(options),
        adapter=options.adapter,
        options=loaded_as(options),
    ).as_dict()
    show(figures)
    return figures


def show(figures: Mapping[str, Any]) -> None:
    """Print the tables of a comparison."""
    software = ", a software adapter" if figures["software"] else ""
    print(f"{figures['adapter']}{software}")
    table(
        ("mode", "ms per token", *GPU_COLUMNS, *COUNTED, "forwards"),
        [_cells(name, mode) for name, mode in figures["modes"].items()],
    )
    show_ratios(figures["ratios"])
    for gain in figures["interval_model"]:
        print(
            f"gain of {gain['name']} over {gain['over']}: {gain['predicted']:.2f} predicted from "
            f"{gain['encode_ms']:.3f} ms to record, {gain['gpu_ms']:.3f} ms of GPU and "
            f"{gain['sync_ms']:.3f} ms of waiting; {gain['measured']:.2f} measured"
        )
    spread = figures["gpu_time_spread"]
    if spread is not None:
        verdict = figures["gpu_time_verdict"]
        print(f"GPU time of a token's kernels differs by {100 * spread:.1f} %: {verdict}")
    print("all modes generate the same token ids")


def _cells(name: str, mode: Mapping[str, Any]) -> tuple[str, ...]:
    times, work = mode["ms_per_token"], mode["work"]
    return (
        name,
        f"{times['median']:.3f} ({times['least']:.3f} to {times['most']:.3f})",
        *("-" if mode[key] is None else f"{mode[key]:.3f}" for key in GPU_COLUMNS.values()),
        *(f"{work[key] / mode['tokens']:,.2f}" for key in COUNTED.values()),
        f"{mode['forwards']} ({mode['wasted_forwards']} wasted)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("package", help="a package: folder, URL or hf://org/name")
    names = ", ".join((*MODES, *GROUPS))
    add("--mode", default="all", metavar="MODE[,MODE...]", help=f"modes to measure: {names}")
    add("--submit", choices=("per-op", "per-token"), help="replace the submissions of every mode")
    add("--sampler", choices=("cpu", "gpu"), help="take the argmax there in every mode")
    add_workload(parser)
    add_loading(parser)
    options = parser.parse_args(arguments)
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
