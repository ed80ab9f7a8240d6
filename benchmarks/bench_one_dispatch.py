"""Measure decoding with a whole token in one dispatch, beside dispatches of each phase.

    python benchmarks/bench_one_dispatch.py --shape llama-1b --quantize q4_k_m

Both executors decode the same tokens alternately: the most probable ones, sampled ones, those of a
sequence that is alone in a batch, and sampled ones of a constraint, for each of which the host
sends a mask. Then the phases of the one dispatch are left out, one kind at a time, because a shader
has no clock; the first row leaves out all of them, so only the waits remain. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from _prepared import Clock, package
from _script import finish, keep_busy, table
from rdrr._executor import persistence
from rdrr._load_options import WEBGPU
from rdrr.bench.runs import Workload, open_device
from rdrr_manifests.package import open_package
from rdrr_runtime.backend import Row
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.plan import RING
from rdrr_runtime.gpu import GpuBackend
from rdrr_runtime.measure.one_dispatch import OneDispatch, time_parts
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.feed import GpuFeed
from rdrr_runtime.sequences.step import Step
from shapes import SHAPES

if TYPE_CHECKING:
    from rdrr._load_options import ExecutorName

EXECUTORS: tuple[ExecutorName, ...] = ("dispatches", "persistent")
SAMPLING = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=1)


def greedy(backend: GpuBackend, token: int, work: Workload) -> list[int]:
    """Return the most probable tokens after the prompt."""
    return collect(backend.feed([token], work.prompt_tokens), work)


def sampled(backend: GpuBackend, token: int, work: Workload) -> list[int]:
    """Return sampled tokens, the same ones each time."""
    backend.begin(SAMPLING, ())
    return collect(backend.feed([token], work.prompt_tokens, sampled=True), work)


def alone(backend: GpuBackend, token: int, work: Workload) -> list[int]:
    """Return the most probable tokens of a sequence that is alone in a batch."""
    rows = [Row(token, 0, work.prompt_tokens)]
    feed = backend.batch(1, work.context).feed_rows(rows, sampled=False)
    assert feed is not None, "no tables of the model are on the host"
    return collect(feed, work)


def constrained(backend: GpuBackend, token: int, work: Workload) -> list[int]:
    """Return sampled tokens, of which a mask allows half; the host waits for each of them."""
    backend.begin(SAMPLING, (), masked=True)
    ids, mask = [token], np.full(-(-backend._plan.graph.vocab_size // 32), 0x55555555, np.uint32)
    for slot in range(work.prompt_tokens, work.prompt_tokens + work.tokens):
        ids += backend.sample_masked(ids[-1:], slot, mask.copy)
    return ids[1:]


KINDS: Mapping[str, Callable[[GpuBackend, int, Workload], list[int]]] = {
    "greedy": greedy,
    "sampled": sampled,
    "alone in a batch": alone,
    "constrained": constrained,
}


def collect(feed: GpuFeed, work: Workload) -> list[int]:
    """Decode after the prompt, with passes ahead of the readback of their ids."""
    ids: list[int] = []
    step = RING // 4
    counts = [min(step, work.tokens - at) for at in range(0, work.tokens, step)]
    for number, count in enumerate(counts):
        feed.submit(count)
        feed.fence()
        if number:  # one copy ahead of the passes that are running
            ids += feed.collect()[0]
    return ids + feed.collect()[0]


@dataclass(frozen=True)
class Compared:
    """One kind of decoding with both executors.

    Attributes:
        rates: Tokens per second of each executor.
        equal: How many ids agree.
    """

    rates: Mapping[ExecutorName, float]
    equal: int

    @property
    def ratio(self) -> float:
        """How much faster one dispatch is."""
        return self.rates["persistent"] / self.rates["dispatches"]


def compare(
    backends: Mapping[ExecutorName, GpuBackend], kind: str, token: int, work: Workload
) -> Compared:
    """Decode alternately after the prompt, which both have run."""

    def run(backend: GpuBackend) -> tuple[float, list[int]]:
        start = time.perf_counter()
        ids = KINDS[kind](backend, token, work)
        return (time.perf_counter() - start) / work.tokens, ids

    times: dict[ExecutorName, list[float]] = {name: [] for name in backends}
    ids: dict[ExecutorName, list[int]] = {}
    for backend in backends.values():
        keep_busy(partial(run, backend), 0.4)
    for number in range(work.repeat):
        for name in list(backends)[:: 1 if number % 2 == 0 else -1]:
            seconds, ids[name] = run(backends[name])
            times[name].append(seconds)
    a, b = ids.values()
    rates = {name: 1 / median(values) for name, values in times.items()}
    return Compared(rates, sum(mine == theirs for mine, theirs in zip(a, b, strict=True)))


def compare_kinds(
    backends: Mapping[ExecutorName, GpuBackend], vocabulary: int, work: Workload
) -> dict[str, Compared]:
    """Run the prompt in both, as a single sequence and in a batch, and compare each kind."""
    prompt = work.ids(vocabulary)
    firsts = [backend.greedy(prompt, 0, 1)[0] for backend in backends.values()]
    for backend in backends.values():
        rows = [Row(token, 0, slot) for slot, token in enumerate(prompt)]
        backend.batch(1, work.context).fill(rows)
    return {kind: compare(backends, kind, firsts[0], work) for kind in KINDS}


def show_parts(timed: OneDispatch) -> None:
    """Print the time of each kind of phase: how much less a token takes without it."""
    count = sum(part.phases for part in timed.parts)
    rows = [("waits alone", count + 1, f"{1e6 * timed.waits:.0f}")]
    rows += [(part.kernel, part.phases, f"{1e6 * part.seconds:.0f}") for part in timed.parts]
    table(("part", "phases", "us"), [*rows, ("all", count, f"{1e6 * timed.seconds:.0f}")])


def measure(options: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, Any]:
    """Measure both executors and print the tables; return the figures for JSON."""
    folder = options.package or package(
        scratch, options.shape, "row", Clock(), quantize=options.quantize
    )
    work = Workload(options.prompt_tokens, options.tokens, options.repeat)
    opened = open_package(folder)
    device = stack.enter_context(open_device(options.adapter, options.webgpu))
    backends: dict[ExecutorName, GpuBackend] = {}
    for name in EXECUTORS:
        wanted = persistence(device, name)
        backend = GpuBackend(opened, context=work.context, device=device, persistence=wanted)
        backends[name] = stack.enter_context(closing(backend))
    compared = compare_kinds(backends, opened.manifest.architecture.vocab_size, work)
    model = backends["persistent"]
    decision = next(taken for taken in model.info.decisions if taken.op == "decode pass")
    kernel = decision.kernel
    print(f"decode pass as {kernel}: {decision.reason}")
    table(
        ("tokens/s", "dispatches", kernel, "ratio", "equal ids"),
        [
            (
                kind,
                *(f"{result.rates[name]:.0f}" for name in EXECUTORS),
                f"{result.ratio:.2f}",
                f"{result.equal} of {work.tokens}",
            )
            for kind, result in compared.items()
        ],
    )
    figures: dict[str, Any] = {
        "benchmark": "one dispatch",
        "kernel": kernel,
        "kinds": {
            kind: {"rates": result.rates, "equal_ids": result.equal}
            for kind, result in compared.items()
        },
    }
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
            **{part.kernel: 1e6 * (parts.seconds - part.seconds) for part in parts.parts},
        }
        show_parts(parts)
    return figures


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--package", type=Path, help="load this package instead of one of --shape")
    add("--shape", choices=tuple(SHAPES), default="llama-1b")
    add("--quantize", default="q4_k_m")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--webgpu", choices=WEBGPU, default="auto", help="the implementation of WebGPU")
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
