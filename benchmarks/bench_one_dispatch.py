"""Measure decoding with a whole token in one dispatch, beside dispatches of each phase.

    python benchmarks/bench_one_dispatch.py --shape llama-1b --quantize q4_k_m

Both executors decode the same tokens alternately. Then the phases of the one dispatch are left out,
one kind at a time, because a shader has no clock; the first row leaves out all of them, so only the
waits remain. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _prepared import Clock, package
from _script import finish, keep_busy, table
from rdrr._executor import persistence
from rdrr.bench.runs import Workload, open_device
from rdrr_manifests.package import open_package
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import RING
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.measure.one_dispatch import OneDispatch, time_parts
from rdrr_runtime.sequences.step import Step
from shapes import SHAPES

if TYPE_CHECKING:
    from rdrr._load_options import ExecutorName

EXECUTORS: tuple[ExecutorName, ...] = ("dispatches", "persistent")


def decode(backend: GpuBackend, token: int, work: Workload) -> tuple[float, list[int]]:
    """Decode greedily after the prompt; return the seconds of a token, and the ids."""
    start = time.perf_counter()
    ids: list[int] = []
    feed = backend.feed([token], work.prompt_tokens)
    step = RING // 4
    counts = [min(step, work.tokens - at) for at in range(0, work.tokens, step)]
    for number, count in enumerate(counts):
        feed.submit(count)
        feed.fence()
        if number:  # one copy ahead of the passes that are running
            ids += feed.collect()[0]
    ids += feed.collect()[0]
    return (time.perf_counter() - start) / work.tokens, ids


def compare(
    backends: Mapping[ExecutorName, GpuBackend], vocabulary: int, work: Workload
) -> tuple[dict[ExecutorName, float], int]:
    """Decode alternately; return the tokens per second of each backend, and how many ids agree."""
    first = {name: one.greedy(work.ids(vocabulary), 0, 1)[0] for name, one in backends.items()}
    times: dict[ExecutorName, list[float]] = {name: [] for name in backends}
    ids: dict[ExecutorName, list[int]] = {}
    for name, one in backends.items():
        keep_busy(partial(decode, one, first[name], work), 0.4)
    for number in range(work.repeat):
        for name in list(backends)[:: 1 if number % 2 == 0 else -1]:
            seconds, ids[name] = decode(backends[name], first[name], work)
            times[name].append(seconds)
    a, b = ids.values()
    rates = {name: 1 / median(values) for name, values in times.items()}
    return rates, sum(one == other for one, other in zip(a, b, strict=True))


def show_parts(found: OneDispatch) -> None:
    """Print the time of each kind of phase: how much less a token takes without it."""
    count = sum(one.phases for one in found.parts)
    rows = [("waits alone", count + 1, f"{1e6 * found.waits:.0f}")]
    rows += [(one.kernel, one.phases, f"{1e6 * one.seconds:.0f}") for one in found.parts]
    table(("part", "phases", "us"), [*rows, ("all", count, f"{1e6 * found.seconds:.0f}")])


def measure(options: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, Any]:
    """Measure both executors and print the tables; return the figures for JSON."""
    folder = options.package or package(
        scratch, options.shape, "row", Clock(), quantize=options.quantize
    )
    work = Workload(options.prompt_tokens, options.tokens, options.repeat)
    opened, device = open_package(folder), stack.enter_context(open_device(options.adapter))
    backends: dict[ExecutorName, GpuBackend] = {}
    for name in EXECUTORS:
        wanted = persistence(device, name)
        made = GpuBackend(opened, context=work.context, device=device, persistence=wanted)
        backends[name] = stack.enter_context(closing(made))
    rates, equal = compare(backends, opened.manifest.architecture.vocab_size, work)
    launched, persistent = (rates[name] for name in EXECUTORS)
    model = backends["persistent"]
    kernel = next(one.kernel for one in model.info.decisions if one.op == "decode pass")
    table(
        ("executor", "tokens/s", "ratio", "equal ids"),
        [
            ("dispatches", f"{launched:.0f}", "1.00", ""),
            (
                kernel,
                f"{persistent:.0f}",
                f"{persistent / launched:.2f}",
                f"{equal} of {work.tokens}",
            ),
        ],
    )
    figures: dict[str, Any] = {"benchmark": "one dispatch", "kernel": kernel, "rates": rates}
    executor = model._executor
    if isinstance(executor, PersistentExecutor):
        step = Step(device, model._plan.state)
        parts = time_parts(
            executor,
            executor.on_grid(model._plan.decode),
            lambda: step.write([1], work.prompt_tokens),
            rounds=max(3, work.repeat),
        )
        figures["microseconds"] = {
            "none": 1e6 * parts.seconds,
            "all": 1e6 * parts.waits,
            **{one.kernel: 1e6 * (parts.seconds - one.seconds) for one in parts.parts},
        }
        show_parts(parts)
    return figures | {"equal_ids": equal}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--package", type=Path, help="load this package instead of one of --shape")
    add("--shape", choices=tuple(SHAPES), default="llama-1b")
    add("--quantize", default="q4_k_m")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--prompt-tokens", type=int, default=512)
    add("--tokens", type=int, default=128, help="decoded tokens of each run")
    add("--repeat", type=int, default=5)
    add("--work", type=Path, help="keep the package here for the next run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = parse(arguments)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        return finish(lambda: measure(options, options.work or Path(scratch), stack))


if __name__ == "__main__":
    raise SystemExit(main())
