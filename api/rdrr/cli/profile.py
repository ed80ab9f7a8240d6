"""`rdrr profile`: GPU time of a model by kernel, and the time that the CPU spends around it."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import StoreError, UsageError

from rdrr._load_options import LoadOptions
from rdrr.cli._console import console, facts, note, print_json, table
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._progress import status

if TYPE_CHECKING:
    from rdrr_runtime.measure.profiled import Profile

_COLUMNS = (
    "kernel",
    "ops",
    "calls",
    "total ms",
    "mean us",
    "share",
    "moved GB/s",
    "of a copy",
)


@with_flags
def profile(
    path: PackagePath,
    *,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens of the prompt. [default: 512, or fewer if the context is smaller]"
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode after the prompt.")] = 32,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to create with a trace for ui.perfetto.dev."),
    ] = None,
    load: Annotated[
        LoadOptions,
        Only(
            *("adapter", "webgpu", "kernel_hints", "kv_dtype", "rounded_weights", "context"),
            *("executor", "follow_links"),
        ),
    ],
    json: JsonFlag = False,
) -> int:
    """Measure the GPU time of each kernel and the CPU time around it, in prefill and decode."""
    from rdrr_format.stores import replace_file
    from rdrr_manifests.package import open_package

    from rdrr import _profile
    from rdrr._backends import resolve_hints
    from rdrr._load import context_of

    _check(trace)
    package = open_package(path, follow_links=load.follow_links)
    policy = resolve_hints(package, load.kernel_hints, load.rounded_weights)
    context = context_of(package, load.context)
    with status("loading and measuring the model", hidden=json):
        measured = _profile.measure(
            package,
            policy,
            adapter=load.adapter,
            webgpu=load.webgpu,
            kv_dtype=load.kv_dtype,
            context=context,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            executor=load.executor,
        )
    if trace is not None:
        replace_file(trace, jsonlib.dumps(_profile.trace(measured)).encode())
        note(f"trace written to {trace}; open it in ui.perfetto.dev")
    figures = _profile.as_dict(measured)
    if json:
        print_json(figures)
    else:
        _show(measured, figures)
    return 0


def _check(trace: Path | None) -> None:
    if trace is None:
        return
    if trace.exists():
        raise UsageError("the file already exists", where=str(trace), hint="choose another name")
    if not trace.parent.is_dir():
        raise UsageError("there is no such folder", where=str(trace.parent))
    if not os.access(trace.parent, os.W_OK):  # found before anything is measured
        raise StoreError("permission denied", where=str(trace.parent))


def _show(measured: Profile, figures: dict[str, Any]) -> None:
    out = console()
    software = ", a software adapter" if measured.adapter.software else ""
    copied = figures["copy"]["gigabytes_per_second"]
    out.print(
        facts(
            [
                ("adapter", f"{measured.adapter.name}{software}"),
                ("copy", f"{copied:.1f} GB/s (bytes read plus bytes written)"),
            ]
        )
    )
    for step in figures["steps"]:
        out.print()
        out.print(facts(_figures(step)))
        rows = [_row(kernel) for kernel in step["kernels"]]
        out.print(table(_COLUMNS, rows, right=_COLUMNS[1:]))
    if "one_dispatch" in figures:
        out.print()
        _show_parts(figures["one_dispatch"])


def _show_parts(timed: dict[str, Any]) -> None:
    grid = f"{timed['workgroups']} workgroups of {timed['threads']} threads"
    out, columns = console(), ("kernel", "phases", "ms less without it")
    out.print(
        facts(
            [
                ("decode in one dispatch", grid),
                ("GPU", f"{timed['gpu_ms']:.3f} ms per step, without the last phase"),
                ("waits alone", f"{timed['waits_ms']:.3f} ms"),
            ]
        )
    )
    rows = [(part["kernel"], str(part["phases"]), f"{part['ms']:.4f}") for part in timed["parts"]]
    out.print(table(columns, rows, right=columns[1:]))


def _figures(step: dict[str, Any]) -> list[tuple[str, str]]:
    rows, runs = step["token_rows"], step["runs"]
    what = f"{rows} tokens, {runs} times" if step["step"] == "prefill" else f"{runs} tokens"
    return [
        (step["step"], what),
        ("GPU", f"{step['gpu_ms']:.3f} ms per step"),
        ("GPU, each dispatch alone", f"{step['gpu_ms_in_single_passes']:.3f} ms"),
        ("CPU encode", f"{step['encode_ms']:.3f} ms"),
        ("CPU sync", f"{step['sync_ms']:.3f} ms, which includes the GPU's work"),
    ]


def _row(kernel: dict[str, Any]) -> tuple[str, ...]:
    moved = kernel["bytes"] > 0
    return (
        kernel["kernel"],
        str(kernel["ops"]),
        str(kernel["calls"]),
        f"{kernel['total_ms']:.3f}",
        f"{kernel['mean_us']:.1f}",
        f"{kernel['share']:.1%}",
        f"{kernel['gigabytes_per_second']:.3g}" if moved else "",
        f"{kernel['share_of_copy']:.1%}" if moved else "",
    )
