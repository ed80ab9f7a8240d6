"""`rdrr bench`: the speed, the work per token and the memory of one package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rdrr_format.errors import UsageError

from rdrr._load_options import LoadOptions
from rdrr._units import format_size
from rdrr.cli._console import console, facts, note, print_json
from rdrr.cli._flags import Only, with_flags
from rdrr.cli._options import JsonFlag, PackagePath
from rdrr.cli._progress import status

if TYPE_CHECKING:
    from rdrr.bench.speed import Speed

SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "kernels": "bench_kernels.py",
        "external": "bench_llama_cpp.py",
        "--mode": "bench_modes.py",
        "--submit": "bench_modes.py",
        "--sampler": "bench_modes.py",
        "--ablation": "bench_ablations.py",
        "--package": "bench_ablations.py",
        "--shape": "bench_kernels.py",
        "--llama-cpp": "bench_llama_cpp.py",
        "--gguf": "bench_llama_cpp.py",
    }
)
"""The script in benchmarks/ that took over each former subcommand or option of this command."""

Moved: TypeAlias = Annotated[str | None, typer.Option(hidden=True)]


@with_flags
def bench(
    path: PackagePath,
    *,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=2, help="New tokens per run.")] = 128,
    repeat: Annotated[int, typer.Option(min=1, help="Number of runs that are measured.")] = 5,
    interval: Annotated[int, typer.Option(min=1, help="Tokens between two readbacks.")] = 8,
    load: Annotated[
        LoadOptions,
        Only(
            *("adapter", "webgpu", "kernel_hints", "kv_dtype", "rounded_weights", "executor"),
            "follow_links",
        ),
    ],
    json: JsonFlag = False,
    mode: Moved = None,
    submit: Moved = None,
    sampler: Moved = None,
    ablation: Moved = None,
    package: Moved = None,
    shape: Moved = None,
    llama_cpp: Moved = None,
    gguf: Moved = None,
) -> int:
    """Measure the speed, the work per token and the memory of a package on the GPU."""
    _refuse_moved(
        path,
        {
            "--mode": mode,
            "--submit": submit,
            "--sampler": sampler,
            "--ablation": ablation,
            "--package": package,
            "--shape": shape,
            "--llama-cpp": llama_cpp,
            "--gguf": gguf,
        },
    )
    from rdrr_manifests.package import open_package

    from rdrr.bench.runs import LoadedAs, Workload
    from rdrr.bench.speed import measure

    options = LoadedAs(
        load.kernel_hints,
        load.kv_dtype,
        executor=load.executor,
        rounded_weights=load.rounded_weights,
    )
    with status("loading and measuring the model", hidden=json):
        speed = measure(
            open_package(path, follow_links=load.follow_links),
            Workload(prompt_tokens, tokens, repeat),
            adapter=load.adapter,
            webgpu=load.webgpu,
            options=options,
            interval=interval,
        )
    if json:
        print_json(speed.as_dict())
    else:
        console().print(facts(_rows(speed)))
        for line in speed.warnings:
            note(f"warning: {line}")
    return 0


def _refuse_moved(path: str, options: Mapping[str, str | None]) -> None:
    """Refuse former subcommands and options, and name the script that took over.

    Raises:
        UsageError: One of them was given.
    """
    given = [path, *(name for name, value in options.items() if value is not None)]
    for word in given:
        if word in SCRIPTS:
            raise UsageError(
                f"`rdrr bench` no longer measures what {word} asked for",
                hint=f"run benchmarks/{SCRIPTS[word]} from a checkout of the rdrr repository",
            )


def _rows(speed: Speed) -> Iterable[tuple[str, str]]:
    per = speed.ms_per_token
    work = speed.work_per_token
    software = ", a software adapter" if speed.software else ""
    yield "adapter", f"{speed.adapter}{software}, through {speed.webgpu}"
    yield (
        "runs",
        f"{speed.repeat} with {speed.prompt_tokens} prompt tokens, {speed.tokens} new tokens",
    )
    yield "time to first token", f"{speed.time_to_first_token_ms.show()} ms"
    yield "first run", f"{speed.first_run_ms:,.0f} ms to first token, with compilation"
    yield "loading", f"{speed.load_ms:,.0f} ms"
    yield "prefill", f"{speed.prefill_tokens_per_second.show(1)} tokens/s"
    if speed.decode_tokens_per_second.median > 0:
        yield "decode", f"{speed.decode_tokens_per_second.show(1)} tokens/s"
    yield "ms per token", "  ".join(f"{name} {value:.3f}" for name, value in per.items())
    yield "GPU time, prefill", _milliseconds(speed.gpu_prefill_ms)
    yield "GPU time per token", _milliseconds(speed.gpu_decode_ms_per_token)
    host = "  ".join(f"{name} {value:.3f}" for name, value in speed.host_ms_per_token.items())
    yield "host ms per token", host
    yield "submits per token", f"{work['submits']:.3f}, {work['dispatches']:.0f} dispatches"
    read, written = work["bytes_read"], work["bytes_written"]
    yield "bytes per token", f"{read:.0f} read back, {written:.0f} written"
    yield "weights", format_size(speed.weights_bytes)
    yield "key-value cache", format_size(speed.kv_bytes)
    yield "peak GPU memory", format_size(speed.peak_gpu_bytes)


def _milliseconds(value: float | None) -> str:
    return (
        "not measured: the adapter does not support timestamp queries"
        if value is None
        else f"{value:.3f} ms"
    )
