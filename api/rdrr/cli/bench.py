"""`rdrr bench`: the figures of one package, and published decode modes measured in turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rdrr_format.errors import UsageError

from rdrr._units import format_size
from rdrr.cli._bench import show_external, show_kernels, show_ratios
from rdrr.cli._console import console, facts, note, print_json, table
from rdrr.cli._options import Adapter, JsonFlag, KernelHints, KvDtype, split_hints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rdrr_manifests.package import Package

    from rdrr.bench._runs import Options, Workload
    from rdrr.bench.modes import Comparison
    from rdrr.bench.speed import Speed


def bench(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH|kernels|external",
            help="A package; or kernels, to measure kernels alone; or external, for llama.cpp.",
            show_default=False,
        ),
    ],
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE[,MODE...]",
            help="Compare modes: webllm, webllm+cache, webllm+cache+interval, ours-x1, ours-x2, "
            "ours-x4, ours-x8, ahead-x1, ahead-x8; ours and all name several.",
        ),
    ] = None,
    submit: Annotated[
        Literal["per-op", "per-token"] | None,
        typer.Option(help="Submissions of every mode, instead of its own."),
    ] = None,
    sampler: Annotated[
        Literal["cpu", "gpu"] | None,
        typer.Option(help="Where every mode takes the argmax, instead of its own."),
    ] = None,
    ablation: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME...]", help="Measure single changes; all for all of them."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="The same model converted otherwise, for ablations: column, flat or fused; "
            "with external: ours=PATH.",
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="NAME", help="With kernels: whose matrices.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With external: llama.cpp's shared libraries."),
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With external: the model for it.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Ids of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="New ids of a run.")] = 128,
    repeat: Annotated[int, typer.Option(min=1, help="Runs, or rounds of all modes.")] = 5,
    interval: Annotated[
        int, typer.Option(min=1, help="Tokens between two readbacks, without --mode.")
    ] = 8,
    adapter: Adapter = None,
    kernel_hint: KernelHints = None,
    kv_dtype: KvDtype = "f16",
    json: JsonFlag = False,
) -> int:
    """Measure a package on the GPU, or decode modes of published systems against each other."""
    from rdrr_manifests.package import open_package

    from rdrr.bench._runs import Options, Workload

    if mode is None and (submit or sampler):
        raise UsageError("--submit and --sampler belong to --mode")
    if mode is not None and ablation is not None:
        raise UsageError("--mode and --ablation are two benchmarks", hint="give one of them")
    work = Workload(prompt_tokens, tokens, repeat)
    if path == "external":
        return show_external(llama_cpp, gguf, work, _named(package).get("ours"), adapter, json)
    if llama_cpp is not None or gguf is not None:
        raise UsageError("--llama-cpp and --gguf belong to `rdrr bench external`")
    if path == "kernels":
        return show_kernels(shape, repeat, adapter, json)
    if shape is not None:
        raise UsageError("--shape belongs to `rdrr bench kernels`")
    if ablation is None and package:
        raise UsageError("--package belongs to --ablation")
    opened = open_package(path)
    options = Options(split_hints(kernel_hint), kv_dtype)
    if ablation is not None:
        others = {name: open_package(where) for name, where in _named(package).items()}
        return _ablations({"": opened, **others}, ablation, work, adapter, json)
    if mode is not None:
        return _modes(opened, mode, submit, sampler, work, adapter, options, json)
    return _speed(opened, work, adapter, options, interval, json)


def _named(given: list[str] | None) -> dict[str, str]:
    """`NAME=PATH` words as a mapping.

    Raises:
        UsageError: A word without `=`, or one without a name.
    """
    pairs = [word.partition("=") for word in given or ()]
    for name, separator, where in pairs:
        if not (name and separator and where):
            raise UsageError("not a named package", expected="NAME=PATH", found=name)
    return {name: where for name, _, where in pairs}


def _speed(
    package: Package,
    work: Workload,
    adapter: str | None,
    options: Options,
    interval: int,
    json: bool,
) -> int:
    from rdrr.bench.speed import measure

    found = measure(package, work, adapter=adapter, options=options, interval=interval)
    if json:
        print_json(found.as_dict())
    else:
        console().print(facts(_speed_rows(found)))
        for line in found.warnings:
            note(f"warning: {line}")
    return 0


def _speed_rows(found: Speed) -> Iterable[tuple[str, str]]:
    per = found.ms_per_token
    work = found.work_per_token
    software = ", a software adapter" if found.software else ""
    yield "adapter", f"{found.adapter}{software}"
    yield "run", f"{found.prompt_tokens} prompt tokens, {found.tokens} new, {found.repeat} times"
    yield "time to first token", f"{found.time_to_first_token_ms.show()} ms"
    yield "of the first run", f"{found.first_run_ms:,.0f} ms, loading {found.load_ms:,.0f} ms"
    yield "prefill", f"{found.prefill_tokens_per_second.show(1)} tokens/s"
    yield "decode", f"{found.decode_tokens_per_second.show(1)} tokens/s"
    yield "ms per token", "  ".join(f"{name} {value:.3f}" for name, value in per.items())
    yield "GPU time, prefill", _milliseconds(found.gpu_prefill_ms)
    yield "GPU time, a token", _milliseconds(found.gpu_decode_ms_per_token)
    host = "  ".join(f"{name} {value:.3f}" for name, value in found.host_ms_per_token.items())
    yield "host ms per token", host
    yield "submits a token", f"{work['submits']:.3f}, {work['dispatches']:.0f} dispatches"
    read, written = work["bytes_read"], work["bytes_written"]
    yield "bytes a token", f"{read:.0f} read back, {written:.0f} written"
    yield "weights", format_size(found.weights_bytes)
    yield "key-value cache", format_size(found.kv_bytes)
    yield "peak GPU memory", format_size(found.peak_gpu_bytes)


def _milliseconds(value: float | None) -> str:
    return "not measured: the adapter has no timestamps" if value is None else f"{value:.3f} ms"


def _modes(
    package: Package,
    names: str,
    submit: str | None,
    sampler: Literal["cpu", "gpu"] | None,
    work: Workload,
    adapter: str | None,
    options: Options,
    json: bool,
) -> int:
    from rdrr.bench._mode_table import chosen
    from rdrr.bench.modes import compare

    modes = chosen(names.split(","), submit=submit, sampler=sampler)
    found = compare(package, modes, work, adapter=adapter, options=options)
    if json:
        print_json(found.as_dict())
    else:
        _show_modes(found)
    return 0


def _show_modes(found: Comparison) -> None:
    from rdrr.bench._interval_model import interval_gains

    out = console()
    software = ", a software adapter" if found.software else ""
    out.print(facts([("adapter", f"{found.adapter}{software}")]))
    cells = []
    for name, one in found.as_dict()["modes"].items():
        work, times = one["work"], one["ms_per_token"]
        cells.append(
            (
                name,
                f"{times['median']:.3f} ({times['least']:.3f} to {times['most']:.3f})",
                *("-" if one[key] is None else f"{one[key]:.3f}" for key in _GPU_COLUMNS.values()),
                *(f"{work[key] / one['tokens']:,.2f}" for key in _COLUMNS.values()),
                f"{one['forwards']} ({one['wasted_forwards']} wasted)",
            )
        )
    headings = ("mode", "ms a token", *_GPU_COLUMNS, *_COLUMNS, "forwards")
    out.print(table(headings, cells, right=headings[1:]))
    show_ratios(found.ratios(), software=found.software)
    for gain in interval_gains(found.modes):
        out.print(
            f"gain of {gain.name} over {gain.over}: {gain.predicted:.2f} predicted from "
            f"{gain.encode_ms:.3f} ms to record, {gain.gpu_ms:.3f} ms of GPU and "
            f"{gain.sync_ms:.3f} ms of waiting; {gain.measured:.2f} measured"
        )
    spread = found.gpu_spread()
    if spread is not None:
        out.print(
            f"GPU time of a token's kernels differs by {100 * spread:.1f} %: {found.gpu_verdict()}"
        )
    out.print("the ids are the same in every mode")


def _ablations(
    packages: dict[str, Package], names: str, work: Workload, adapter: str | None, json: bool
) -> int:
    from rdrr.bench.ablations import chosen, measure

    found = measure(packages, chosen(names.split(",")), work, adapter=adapter)
    if json:
        print_json(found.as_dict())
        return 0
    show_ratios([row.ratio() for row in found.rows if not row.obstacle], software=found.software)
    for row in found.rows:
        if row.obstacle:
            console().print(f"{row.ablation.name}: not run, {row.obstacle}", markup=False)
        for line in row.warnings:
            note(f"warning: {row.ablation.name}: {line}")
    return 0


_GPU_COLUMNS = {"GPU ms": "gpu_ms_per_token", "of kernels": "gpu_kernels_ms_per_token"}
_COLUMNS = {
    "dispatches": "dispatches",
    "submits": "submits",
    "buffers": "buffer_creates",
    "bind groups": "bind_group_creates",
    "maps": "maps",
    "written B": "bytes_written",
    "read B": "bytes_read",
}
"""Counters of the table, each a token."""
