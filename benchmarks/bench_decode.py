"""Measure prefill and decode speed of a model of a given shape, with llama.cpp in the same run.

    python benchmarks/bench_decode.py --shape llama-1b --quantize q4_k_m --peer PATH

The script makes all files itself: a checkpoint with random weights, rdrr packages of it, and a GGUF
file with the same blocks. The runners alternate. Each is kept busy for a while before it is timed,
so that the GPU has raised its clocks. The tables show medians with the least and the most; ratios
are to the fastest variant of llama.cpp. The logits of all runners are compared before anything is
timed, to show that they run the same model. `--peer` is the npm package that `peers/llama_cpp.py`
names, as a tarball or a folder; without it llama.cpp is listed as "not run". The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
from _prepared import Clock, gguf_file, package
from _runners import LlamaCppRunner, RdrrRunner, Runner, rates
from _script import keep_busy, prepare_environment, table
from configured_shapes import ALL_SHAPES
from rdrr._load_options import ROUNDED_PLACES, WEBGPU
from rdrr.bench.figures import Spread
from rdrr.bench.runs import LoadedAs, Workload
from rdrr_format.errors import RdrrError

LAYOUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "row": {},
        "fused": {"fuse_gate_up": True},
        "column": {"transpose_weights": True, "fuse_gate_up": True},
    }
)
"""Conversion options of each package, by the name that `--layouts` takes."""

AGREEMENT_PROMPTS = 7
"""Number of prompts whose logits are compared before the runners are timed."""

PEER_VARIANTS = ((True, 512), (False, 512), (True, 256))
"""The measured variants of llama.cpp: flash attention on or off, and prompt tokens per pass."""


@dataclass
class Times:
    """The measured seconds of a runner, one element per round.

    Attributes:
        prefill: Prefill of the prompt.
        decode: Decoding after the prompt.
        far: Decoding after `--context` tokens.
    """

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    far: list[float] = field(default_factory=list)


def as_list(spread: Spread) -> list[float]:
    """Return median, least and most for JSON, rounded to one decimal."""
    return [round(value, 1) for value in (spread.median, spread.least, spread.most)]


def open_rdrr(
    options: argparse.Namespace, packages: dict[str, Path], work: Workload, stack: ExitStack
) -> list[RdrrRunner]:
    """Load rdrr's packages on one device of each implementation of WebGPU."""
    from rdrr._webgpu import open_device

    runners: list[RdrrRunner] = []
    loaded = LoadedAs(executor=options.executor, rounded_weights=options.rounded_weights)
    implementations = options.webgpu.split(",")
    for implementation in implementations:
        device = open_device(options.adapter, implementation)
        stack.callback(device.close)
        through = f", {device.info.implementation}" if len(implementations) > 1 else ""
        for layout, folder in packages.items():
            name = f"rdrr, {layout}{through}"
            runner = RdrrRunner(name, folder, device, work, loaded)
            stack.callback(runner.close)
            runners.append(runner)
    return runners


def open_peers(
    options: argparse.Namespace, work: Path, context: int, stack: ExitStack, clock: Clock
) -> tuple[list[Runner], str]:
    """Load the variants of llama.cpp; also return a description of their device.

    Where llama.cpp cannot run, there are no runners and the description says why.
    """
    from peers.llama_cpp import LlamaCpp, PeerModel, UnavailableError, unpacked

    if options.peer is None:
        return [], "not run: --peer is not given"
    runners: list[Runner] = []
    try:
        library = LlamaCpp(stack.enter_context(unpacked(options.peer)))
        device = library.device(options.peer_device)
        path = gguf_file(work, options.shape, options.quantize, clock)
        start = time.perf_counter()
        model = PeerModel(library, path, device)
        seconds = time.perf_counter() - start
        stack.callback(model.close)
        for flash_attention, ubatch in PEER_VARIANTS:
            runner = LlamaCppRunner(
                model, context, flash_attention=flash_attention, ubatch=ubatch,
                load_seconds=seconds,
            )  # fmt: skip
            stack.callback(runner.close)
            runners.append(runner)
    except (UnavailableError, ImportError, ValueError, RdrrError) as error:
        return [], f"not run: {error}"
    return runners, f"llama.cpp {library.version} on {device.name} ({device.description})"


def agreement(runners: Sequence[Runner], ids: Sequence[int]) -> dict[str, float]:
    """Return each runner's relative distance of logits to those of the first runner.

    The distance is |logits - first| / |first| in the Euclidean norm, its median over the last
    `AGREEMENT_PROMPTS` lengths of the prompt: in a mixture of random weights, rounding exchanges
    experts of almost equal probability after some tokens, which says nothing about the others.
    """
    lengths = range(max(1, len(ids) - AGREEMENT_PROMPTS + 1), len(ids) + 1)
    first = [runners[0].logits(ids[:length]) for length in lengths]

    def distances(runner: Runner) -> Iterator[float]:
        for length, expected in zip(lengths, first, strict=True):
            logits = runner.logits(ids[:length])
            yield float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))

    return {runner.name: median(distances(runner)) for runner in runners[1:]}


def measure(
    runners: Sequence[Runner], options: argparse.Namespace, ids: Sequence[int]
) -> dict[str, Times]:
    """Measure prefill and decode of all runners alternately, then decode after a long context."""
    times = {runner.name: Times() for runner in runners}
    prompt, tokens = ids[: options.prompt], ids[: options.tokens]
    busy = tokens[:16]
    for runner in runners:
        runner.prefill(prompt)
        runner.decode(busy, options.prompt)
    for _ in range(options.repeat):
        for runner in runners:
            keep_busy(partial(runner.decode, busy, options.prompt), options.warm)
            times[runner.name].prefill.append(runner.prefill(prompt))
            times[runner.name].decode.append(runner.decode(tokens, options.prompt))
    if options.context:
        for runner in runners:
            runner.prefill(ids[: options.context])
        for _ in range(options.repeat):
            for runner in runners:
                keep_busy(partial(runner.decode, busy, options.context), options.warm)
                times[runner.name].far.append(runner.decode(tokens, options.context))
    return times


def summarize(
    runners: Sequence[Runner], times: dict[str, Times], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return the rates of each runner and the seconds that loading it took."""
    rows: dict[str, dict[str, Any]] = {}
    for runner in runners:
        taken = times[runner.name]
        row: dict[str, Any] = {
            "prefill": rates(options.prompt, taken.prefill),
            "decode": rates(options.tokens, taken.decode),
            "load_seconds": round(runner.load_seconds, 2),
        }
        if taken.far:
            row["far"] = rates(options.tokens, taken.far)
        rows[runner.name] = row
    return rows


def measure_batches(runner: RdrrRunner, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure batches: tokens per second and the bytes read per token, by number of sequences."""
    batches: dict[str, dict[str, Any]] = {}
    sizes = sorted(
        map(int, options.batch.split(",")), reverse=True
    )  # the largest first: its caches serve all
    weights = runner.bytes_per_token
    slot = runner.kv_bytes_per_slot
    for size in sizes:
        run = runner.batch(size, options.prompt, options.prompt + options.tokens)
        run(2)
        seconds = []
        for _ in range(options.repeat):
            keep_busy(partial(run, 8), options.warm)
            seconds.append(run(options.tokens))
        keys = slot * (options.prompt + options.tokens / 2)
        batches[str(size)] = {
            "tokens_per_second": as_list(rates(size * options.tokens, seconds)),
            "step_ms": round(1e3 * median(seconds) / options.tokens, 3),
            "weight_bytes_per_token": round(weights / size),
            "kv_bytes_per_token": round(keys),
        }
    return dict(reversed(batches.items()))


def show_batches(name: str, batches: dict[str, dict[str, Any]]) -> None:
    """Print the table of batches of one runner."""
    print(f"{name}, batches")
    first = next(iter(batches.values()))["tokens_per_second"][0]
    rows = []
    for size, row in batches.items():
        moved = (row["weight_bytes_per_token"] + row["kv_bytes_per_token"]) / 1e6
        rate = row["tokens_per_second"][0]
        rows.append((size, f"{rate:,.0f}", row["step_ms"], f"{moved:,.1f}", f"{rate / first:.2f}"))
    headings = ("sequences", "tokens/s", "ms per step", "MB per token", "over the smallest batch")
    table(headings, rows)


def ratios(rows: dict[str, dict[str, Any]], ours: set[str]) -> dict[str, dict[str, float]]:
    """Divide each median of rdrr's runners by the best median of llama.cpp.

    Args:
        rows: Rates by the name of the runner.
        ours: Names of rdrr's runners.
    """
    peers = [row for name, row in rows.items() if name not in ours]
    if not peers:
        return {}
    best = {
        key: max(row[key].median for row in peers)
        for key in ("prefill", "decode", "far")
        if key in peers[0]
    }
    return {
        name: {key: round(rows[name][key].median / value, 3) for key, value in best.items()}
        for name in rows
        if name in ours
    }


def show(rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table of rates."""
    print(f"tokens per second, median (least to most) of {options.repeat}")
    keys = {"prefill": f"prefill {options.prompt}", "decode": f"decode at {options.prompt}"}
    if options.context:
        keys["far"] = f"decode at {options.context}"
    table(
        ("runner", *keys.values(), "load s"),
        [
            (name, *(row[key].show(0) for key in keys), row["load_seconds"])
            for name, row in rows.items()
        ],
    )


def run(options: argparse.Namespace, work: Path, stack: ExitStack) -> dict[str, Any]:
    """Run the benchmark, print the tables and return the figures for JSON."""
    clock = Clock()
    shape, quantize = options.shape, options.quantize
    packages = {
        layout: package(work, shape, layout, clock, quantize=quantize, **LAYOUTS[layout])
        for layout in options.layouts.split(",")
    }
    size = Workload(max(options.prompt, options.context), options.tokens)
    ids = np.random.default_rng(0).integers(3, ALL_SHAPES[shape].vocab, size.context).tolist()
    with clock.step("load"):
        ours = open_rdrr(options, packages, size, stack)
    peers, peer = open_peers(options, work, size.context, stack, clock)
    runners = [*ours, *peers]
    with clock.step("compare"):
        distances = agreement(runners, ids[: min(64, options.prompt)])
    with clock.step("measure"):
        times = measure(runners, options, ids)
    rows = summarize(runners, times, options)
    first = ours[0]
    print(f"\n{shape}, {quantize}, on {first.device.info.name}; peer {peer}")
    show(rows, options)
    over_peers = ratios(rows, {runner.name for runner in ours})
    traffic = {}
    for runner in ours:
        rate = rows[runner.name]["decode"].median
        traffic[runner.name] = round(runner.bytes_per_token * rate / 1e9, 1)
        print(f"{runner.name}: decode pass as {runner.decode_pass}")
        print(f"{runner.name}: {traffic[runner.name]:,.0f} GB/s of weights while decoding")
    for name, values in over_peers.items():
        words = ", ".join(f"{key} {value:.2f}" for key, value in values.items())
        print(f"{name} over the fastest peer: {words}")
    for name, distance in distances.items():
        print(f"{name}: logits differ from the first runner's by {100 * distance:.2f} %")
    batches: dict[str, Any] = {}
    if options.batch:
        for runner in ours:
            with clock.step(f"batches of {runner.name}"):
                batches[runner.name] = measure_batches(runner, options)
            show_batches(runner.name, batches[runner.name])
    return {
        "benchmark": "decode",
        "batches": batches,
        "shape": shape,
        "quantize": quantize,
        "adapter": first.device.info.name,
        "webgpu": options.webgpu,
        "decode_pass": {runner.name: runner.decode_pass for runner in ours},
        "peer": peer,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "context": options.context,
        "repeat": options.repeat,
        "rates": {
            name: {
                key: as_list(value) if isinstance(value, Spread) else value
                for key, value in row.items()
            }
            for name, row in rows.items()
        },
        "ratios": over_peers,
        "weights_gb_per_second": traffic,
        "logits_distance": {name: round(value, 5) for name, value in distances.items()},
        "seconds": clock.seconds,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=tuple(ALL_SHAPES), default="llama-1b")
    add("--quantize", choices=("q4_k_m", "q8_0", "f16", "f32"), default="q4_k_m")
    add("--layouts", default="row", help=f"packages to measure: {', '.join(LAYOUTS)}")
    add("--peer", type=Path, help="llama.cpp's libraries: the npm tarball or a folder")
    add("--peer-device", default="Vulkan", help="run llama.cpp on the device with this in its name")
    add("--adapter", help="run rdrr on the adapter whose name contains this")
    add(
        "--webgpu",
        default="auto",
        help="implementations of WebGPU to measure: wgpu, dawn, or both as wgpu,dawn",
    )
    add("--prompt", type=int, default=512, help="tokens of the prompt")
    add("--tokens", type=int, default=128, help="tokens to decode")
    add("--context", type=int, default=0, help="also decode after this many cached tokens")
    add("--batch", metavar="N,N", help="also decode batches of N sequences, such as 1,2,4,8,16")
    add("--repeat", type=int, default=5, help="rounds to measure")
    add("--executor", choices=("auto", "dispatches", "persistent"), default="auto")
    add(
        "--rounded-weights",
        choices=ROUNDED_PLACES,
        default="shared",
        help="see `rdrr serve --help`",
    )
    add(
        "--warm",
        type=float,
        default=0.4,
        help="seconds of work before each measurement, to raise the clocks",
    )
    add("--work", type=Path, help="folder that keeps the files; a temporary one by default")
    options = parser.parse_args(arguments)
    unknown = set(options.layouts.split(",")) - set(LAYOUTS)
    if unknown:
        parser.error(f"--layouts: unknown layouts {', '.join(sorted(unknown))}")
    if set(options.webgpu.split(",")) - set(WEBGPU):
        parser.error(f"--webgpu: expected {', '.join(WEBGPU)}, found {options.webgpu}")
    return options


def main() -> None:
    """Run the command line."""
    options = parse()
    prepare_environment()
    with ExitStack() as stack:
        work = options.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run(options, work, stack)))


if __name__ == "__main__":
    main()
