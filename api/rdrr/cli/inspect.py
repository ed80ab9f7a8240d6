"""`rdrr inspect`: the contents of a package, and the memory that running it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import console, facts, heading, print_json, table
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import JsonFlag, PackagePath

if TYPE_CHECKING:
    from rdrr_manifests.faults import Fault
    from rich.console import Console

    from rdrr._survey import Memory, Survey, TensorFacts


@with_flags
def inspect(
    path: PackagePath,
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List all tensors.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show the memory that running the package takes.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            "-c",
            min=1,
            help="Context length that --memory assumes, if not the model's maximum.",
        ),
    ] = None,
    load: Annotated[LoadOptions, Only("adapter", "webgpu", "kernel_hints", "follow_links")],
    json: JsonFlag = False,
) -> int:
    """Show what a package contains, or what a manifest says if PATH is one.

    The adapter and kernel hints matter for --memory only.
    """
    from rdrr_manifests.package import open_package

    from rdrr._backends import resolve_hints
    from rdrr._survey import estimate_memory, survey, tensor_facts

    package = open_package(path, follow_links=load.follow_links, bare=True)
    overview = survey(package.manifest)
    rows = tensor_facts(package.manifest) if tensors else None
    need = None
    if memory or context:
        policy = resolve_hints(package, load.kernel_hints)
        need = estimate_memory(package, policy, context, load.adapter, load.webgpu)
    if json:
        obstacles = {"not_runnable_because": [obstacle.as_dict() for obstacle in package.obstacles]}
        print_json(_as_dict(overview, rows, need) | (obstacles if package.obstacles else {}))
        return 0
    out = console()
    _show_overview(out, overview)
    _show_obstacles(out, package.obstacles)
    if need is not None:
        _show_memory(out, need)
    if rows is not None:
        _show_tensors(out, rows)
    return 0


def _as_dict(
    overview: Survey, rows: list[TensorFacts] | None, need: Memory | None
) -> dict[str, Any]:
    data = overview.as_dict()
    if need is not None:
        data["memory"] = need.as_dict()
    if rows is not None:
        data["tensors"] = [row.as_dict() for row in rows]
    return data


def _show_overview(out: Console, overview: Survey) -> None:
    for title, pairs in overview.sections.items():
        heading(out, title)
        out.print(facts((name, _plain(value)) for name, value in pairs.items()))
    for title, groups in (("by dtype", overview.by_dtype), ("by role", overview.by_role)):
        heading(out, f"tensors {title}")
        cells = [
            (row.name, row.tensors, f"{row.weights:,}", format_size(row.bytes), row.bits_text)
            for row in groups
        ]
        columns = (title.removeprefix("by "), "tensors", "weights", "size", "bits per weight")
        out.print(table(columns, cells, right=columns[1:]))


def _show_obstacles(out: Console, obstacles: tuple[Fault, ...]) -> None:
    if not obstacles:
        return
    heading(out, "not runnable with this version of rdrr, because of")
    reasons = ((fault.field or "manifest", fault.found or fault.message) for fault in obstacles)
    out.print(facts(reasons))


def _show_memory(out: Console, need: Memory) -> None:
    heading(out, f"memory for {need.context} tokens")
    in_blocks = (
        "not possible: the head dimension is not a multiple of the block size"
        if need.kv_q8_0 is None
        else format_size(need.kv_q8_0)
    )
    rows = [
        ("weights as stored", format_size(need.weights)),
        ("key-value cache, f16", format_size(need.kv_f16)),
        ("key-value cache, f32", format_size(need.kv_f32)),
        ("key-value cache, q8_0", in_blocks),
        (f"activations, {need.rows} rows", format_size(need.activations)),
        ("total with an f16 cache", format_size(need.total)),
    ]
    out.print(facts(rows))
    if need.loaded is None:
        return
    heading(out, f"allocated on {need.loaded.adapter} with an f16 cache")
    kept = [
        ("weights as repacked", need.loaded.weights),
        ("key-value cache", need.loaded.kv),
        ("activations and tables", need.loaded.rest),
        *([("vision tower", need.loaded.tower)] if need.loaded.tower else []),
        *([("its largest image", need.loaded.image)] if need.loaded.tower else []),
        ("total", need.loaded.total),
    ]
    out.print(facts((name, format_size(size)) for name, size in kept))


def _show_tensors(out: Console, rows: list[TensorFacts]) -> None:
    heading(out, "tensors")
    columns = ("name", "role", "dtype", "layout", "shape", "size", "bytes at")
    cells = [
        (
            row.name,
            row.role,
            row.dtype,
            row.layout,
            " x ".join(map(str, row.shape)),
            format_size(row.size),
            row.place,
        )
        for row in rows
    ]
    out.print(table(columns, cells, right=("size",)))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a rope base is 1,000,000, not 1000000.0
    return f"{value:,}" if isinstance(value, int) else str(value)
