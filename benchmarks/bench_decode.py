"""Prefill and decode speed of a model of a given shape, ours beside llama.cpp in the same run.

    python benchmarks/bench_decode.py --shape llama-1b --quantize q4_k_m --peer PATH

Makes everything itself: a checkpoint with random weights, packages of it by our converter, and a
GGUF file of the same blocks. All runners take turns; each is kept busy for a while before its
turn, so that the clocks are up, and medians with the extremes are printed. Ratios are to the
fastest of the peer's variants. Before any time is taken the logits are compared, so that nobody
is measured on another model. `--peer` is the npm package that `rdrr.bench.llama_cpp` names, as a
tarball or a folder; without it the peer is "not run". The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _prepared import LAYOUTS, Clock, prepare, prepare_gguf
from _runners import LlamaCppRunner, Ours, Runner
from shapes import SHAPES

PEER_VARIANTS = ((True, 512), (False, 512), (True, 256))
"""Flash attention, tokens of a pass."""


@dataclass
class Times:
    """Seconds that a runner took, in the order of the rounds."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    far: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Rates:
    """Tokens a second over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, tokens: int, seconds: Sequence[float]) -> Rates:
        """Of passes over `tokens` tokens that took `seconds` each."""
        rates = [tokens / one for one in seconds]
        return cls(median(rates), min(rates), max(rates))

    def __str__(self) -> str:
        return f"{self.median:,.0f} ({self.least:,.0f} to {self.most:,.0f})"

    def as_list(self) -> list[float]:
        """Median, least, most."""
        return [round(value, 1) for value in (self.median, self.least, self.most)]


def open_ours(
    options: argparse.Namespace, packages: dict[str, Path], context: int, stack: ExitStack
) -> list[Runner]:
    """Our packages on one device."""
    from rdrr_device.device import open_device

    device = open_device(options.adapter)
    stack.callback(device.close)
    runners: list[Runner] = []
    for layout, folder in packages.items():
        runner = Ours(f"rdrr, {layout}", folder, device, context)
        stack.callback(runner.close)
        runners.append(runner)
    return runners


def open_peers(
    options: argparse.Namespace, work: Path, context: int, stack: ExitStack, clock: Clock
) -> tuple[list[Runner], str]:
    """The peer's variants, and which device they run on or why there are none."""
    from rdrr.bench.llama_cpp import LlamaCpp, PeerModel, UnavailableError, unpacked

    if options.peer is None:
        return [], "not run: no --peer given"
    runners: list[Runner] = []
    try:
        library = LlamaCpp(stack.enter_context(unpacked(options.peer)))
        device = library.device(options.peer_device)
        path = prepare_gguf(options, work, clock)
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
    except (UnavailableError, ImportError, ValueError) as error:
        return [], f"not run: {error}"
    return runners, f"llama.cpp {library.version} on {device.name} ({device.description})"


def agreement(runners: Sequence[Runner], ids: Sequence[int]) -> dict[str, float]:
    """Relative distance of each runner's logits from the first one's."""
    first = runners[0].logits(ids)
    scale = float(np.linalg.norm(first))
    return {
        runner.name: float(np.linalg.norm(runner.logits(ids) - first)) / scale
        for runner in runners[1:]
    }


def keep_busy(run: Callable[[], float], seconds: float) -> None:
    """Repeat until `seconds` are over: a GPU at rest needs a while to raise its clocks."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def measure(
    runners: Sequence[Runner], options: argparse.Namespace, ids: Sequence[int]
) -> dict[str, Times]:
    """Prefill and decode of all runners in turn, then decode behind a long context."""
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
    """For each runner the rates, the seconds to load it and what its weights' traffic is."""
    rows: dict[str, dict[str, Any]] = {}
    for runner in runners:
        taken = times[runner.name]
        row: dict[str, Any] = {
            "prefill": Rates.of(options.prompt, taken.prefill),
            "decode": Rates.of(options.tokens, taken.decode),
            "load_seconds": round(runner.load_seconds, 2),
        }
        if taken.far:
            row["far"] = Rates.of(options.tokens, taken.far)
        rows[runner.name] = row
    return rows


def measure_batches(
    runner: Ours, folder: Path, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Tokens a second of several texts in one pass, and the bytes that a token moves."""
    found: dict[str, dict[str, Any]] = {}
    sizes = sorted(map(int, options.batch.split(",")), reverse=True)  # the largest caches once
    weights = bytes_per_token(folder)
    slot = runner.kv_bytes_per_slot
    for texts in sizes:
        run = runner.batch(texts, options.prompt, options.prompt + options.tokens)
        run(2)
        seconds = []
        for _ in range(options.repeat):
            keep_busy(partial(run, 8), options.warm)
            seconds.append(run(options.tokens))
        rates = Rates.of(texts * options.tokens, seconds)
        keys = slot * (options.prompt + options.tokens / 2)
        found[str(texts)] = {
            "tokens_per_second": rates.as_list(),
            "step_ms": round(1e3 * median(seconds) / options.tokens, 3),
            "weight_bytes_per_token": round(weights / texts),
            "kv_bytes_per_token": round(keys),
        }
    return dict(reversed(found.items()))


def show_batches(name: str, found: dict[str, dict[str, Any]]) -> None:
    """The table of batches."""
    print(f"{name}, several texts in one pass")
    headings = ("texts", "tokens/s", "ms a step", "MB a token", "over one text")
    print("".join(f"{heading:>16}" for heading in headings))
    first = next(iter(found.values()))["tokens_per_second"][0]
    for texts, row in found.items():
        moved = (row["weight_bytes_per_token"] + row["kv_bytes_per_token"]) / 1e6
        rate = row["tokens_per_second"][0]
        cells = texts, f"{rate:,.0f}", row["step_ms"], f"{moved:,.1f}", f"{rate / first:.2f}"
        print("".join(f"{cell!s:>16}" for cell in cells))


def bytes_per_token(folder: Path) -> int:
    """Bytes of the weights that one token needs: all but the embedding, unless it is the head."""
    from rdrr_manifests.package import open_package

    manifest = open_package(folder).manifest
    tied = manifest.inference.output.tie_word_embeddings
    return sum(
        tensor.size for tensor in manifest.tensors.values() if tied or tensor.role != "embedding"
    )


def ratios(rows: dict[str, dict[str, Any]], ours: set[str]) -> dict[str, dict[str, float]]:
    """Each of our medians over the best median of the peer."""
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
    """The table of rates."""
    width = max(map(len, rows)) + 2
    far = f"decode at {options.context}" if options.context else ""
    print(f"tokens a second, median (least to most) of {options.repeat}")
    headings = f"prefill {options.prompt}", f"decode at {options.prompt}", far, "load s"
    print(f"{'':{width}}" + "".join(f"{heading:>26}" for heading in headings))
    for name, row in rows.items():
        cells = row["prefill"], row["decode"], row.get("far", ""), row["load_seconds"]
        print(f"{name:{width}}" + "".join(f"{cell!s:>26}" for cell in cells))


def run(options: argparse.Namespace, work: Path, stack: ExitStack) -> dict[str, Any]:
    """The whole benchmark; prints the table and returns what goes into the JSON object."""
    clock = Clock()
    packages = prepare(options, work, clock)
    context = max(options.prompt, options.context) + options.tokens + 16
    ids = np.random.default_rng(0).integers(3, SHAPES[options.shape].vocab, context).tolist()
    with clock.step("load"):
        ours = open_ours(options, packages, context, stack)
    peers, peer = open_peers(options, work, context, stack, clock)
    runners = [*ours, *peers]
    with clock.step("compare"):
        distances = agreement(runners, ids[: min(64, options.prompt)])
    with clock.step("measure"):
        times = measure(runners, options, ids)
    rows = summarize(runners, times, options)
    first = ours[0]
    assert isinstance(first, Ours)
    print(f"\n{options.shape}, {options.quantize}, on {first.device.info.name}; peer {peer}")
    show(rows, options)
    found = ratios(rows, {runner.name for runner in ours})
    traffic = {}
    for runner, folder in zip(ours, packages.values(), strict=True):
        rate = rows[runner.name]["decode"].median
        traffic[runner.name] = round(bytes_per_token(folder) * rate / 1e9, 1)
        print(f"{runner.name}: {traffic[runner.name]:,.0f} GB/s of weights while decoding")
    for name, values in found.items():
        words = ", ".join(f"{key} {value:.2f}" for key, value in values.items())
        print(f"{name} over the fastest peer: {words}")
    for name, distance in distances.items():
        print(f"{name}: logits differ from the first runner's by {100 * distance:.2f} %")
    batches: dict[str, Any] = {}
    if options.batch:
        for runner, folder in zip(ours, packages.values(), strict=True):
            assert isinstance(runner, Ours)
            with clock.step(f"batches of {runner.name}"):
                batches[runner.name] = measure_batches(runner, folder, options)
            show_batches(runner.name, batches[runner.name])
    return {
        "benchmark": "decode",
        "batches": batches,
        "shape": options.shape,
        "quantize": options.quantize,
        "adapter": first.device.info.name,
        "peer": peer,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "context": options.context,
        "repeat": options.repeat,
        "rates": {
            name: {
                key: value.as_list() if isinstance(value, Rates) else value
                for key, value in row.items()
            }
            for name, row in rows.items()
        },
        "ratios": found,
        "weights_gb_per_second": traffic,
        "logits_distance": {name: round(value, 5) for name, value in distances.items()},
        "seconds": clock.seconds,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=tuple(SHAPES), default="llama-1b")
    add("--quantize", choices=("q4_k_m", "q8_0", "f16", "f32"), default="q4_k_m")
    add("--layouts", default="row", help=f"packages to run, of {', '.join(LAYOUTS)}")
    add("--peer", type=Path, help="llama.cpp's libraries: the npm tarball or a folder")
    add("--peer-device", default="Vulkan", help="part of the name of llama.cpp's device")
    add("--adapter", help="part of the name of our adapter")
    add("--prompt", type=int, default=512)
    add("--tokens", type=int, default=128)
    add("--context", type=int, default=0, help="also decode behind so many tokens")
    add("--batch", metavar="N,N", help="also decode so many texts in one pass, as 1,2,4,8,16")
    add("--repeat", type=int, default=5)
    add("--warm", type=float, default=0.4, help="seconds of work before each measurement")
    add("--work", type=Path, help="folder for the files, kept; a temporary one by default")
    options = parser.parse_args(arguments)
    unknown = set(options.layouts.split(",")) - set(LAYOUTS)
    if unknown:
        parser.error(f"--layouts: unknown {', '.join(sorted(unknown))}")
    return options


def main() -> None:
    """Run and print one JSON object last."""
    options = parse()
    # Mesa's drivers complain, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with ExitStack() as stack:
        work = options.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        work.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run(options, work, stack)))


if __name__ == "__main__":
    main()
