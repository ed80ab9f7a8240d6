"""What `rdrr bench kernels` and `rdrr bench external` print, and the table of ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr.cli._console import console, facts, print_json, table

if TYPE_CHECKING:
    from rdrr.bench._figures import Ratio
    from rdrr.bench._runs import Workload


def show_kernels(shape: str | None, repeat: int, adapter: str | None, json: bool) -> int:
    """Products of a shape, then the pairs; without a shape the pairs alone."""
    from rdrr.bench.kernel_pairs import pairs
    from rdrr.bench.kernels import products

    found = products(shape, adapter=adapter, repeat=repeat) if shape is not None else {}
    compared = pairs(adapter=adapter, repeat=repeat)
    if json:
        print_json(compared | found)
        return 0
    out = console()
    out.print(facts([("adapter", compared["adapter"])]))
    if found:
        out.print(f"a copy moves {found['copy_gigabytes_per_second']:,.1f} GB/s")
        cells = [_cells(one) for one in found["products"]]
        headings = ("matrix", "rows", "kernel", "us", "GB/s", "GFLOP/s", "of the copy")
        out.print(table(headings, cells, right=headings[3:]))
    _show_ratio_rows(compared["ratios"])
    return 0


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    head = (f"{one['matrix']} {one['n']} x {one['k']}", str(one["rows"]), str(one["kernel"]))
    if "not_run" in one:
        return (*head, "not run", "", "", str(one["not_run"]))
    return (
        *head,
        f"{one['microseconds']['median']:,.1f}",
        f"{one['gigabytes_per_second']:,.1f}",
        f"{one['gigaflops']:,.0f}",
        f"{100 * one['share_of_copy']:.1f} %",
    )


def show_external(
    libraries: Path | None,
    gguf: Path | None,
    work: Workload,
    ours: str | None,
    adapter: str | None,
    json: bool,
) -> int:
    """The peer and ours in turns; what cannot run is named with the reason."""
    from rdrr_manifests.package import open_package

    from rdrr.bench.external import measure

    package = open_package(ours) if ours is not None else None
    found = measure(libraries, gguf, work, package=package, adapter=adapter)
    if json:
        print_json(found)
        return 0
    out = console()
    cells = [
        (name, *(f"{rates[key]['median']:,.1f}" for key in rates), found["devices"][name])
        for name, rates in found["runners"].items()
    ]
    cells += [(name, "not run", "not run", why) for name, why in found["not_run"].items()]
    out.print(table(("runner", "prefill tokens/s", "decode tokens/s", ""), cells))
    _show_ratio_rows(found["ratios"])
    return 0


def show_ratios(ratios: Iterable[Ratio], *, software: bool) -> None:
    """The table of ratios with gates and what was published."""
    _show_ratio_rows([one.as_dict(software=software) for one in ratios])


def _show_ratio_rows(ratios: Iterable[Mapping[str, Any]]) -> None:
    cells = [
        (
            one["name"],
            f"{one['median']:,.2f} ({one['least']:,.2f} to {one['most']:,.2f})",
            "" if one["gate"] is None else f"{one['gate']:.2f}",
            "" if one["published"] is None else f"{one['published']:.2f}",
            one["verdict"],
        )
        for one in ratios
    ]
    if cells:
        console().print(table(("ratio", "median (least to most)", "gate", "published", ""), cells))
