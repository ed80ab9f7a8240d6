"""Compare the speed of a package with llama.cpp on a GGUF file of the same model, GPU and CPU.

    python benchmarks/bench_llama_cpp.py --llama-cpp FOLDER --gguf FILE --package PATH

The runners alternate; one that cannot run is listed with the reason. llama.cpp runs given tokens
and samples nothing; its logits are read back after each token, as in its own benchmark. rdrr takes
the argmax on the GPU and reads back eight tokens at a time. `bench_decode.py` makes both files
itself and also tries several options of llama.cpp. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _runners import LlamaCppRunner, RdrrRunner, Runner, rates
from _script import add_workload, finish, table, workload
from peers.llama_cpp import LlamaCpp, PeerModel, UnavailableError, unpacked
from published.ratios import Ratio, show_ratios
from rdrr.bench.runs import Workload, open_device

OURS = "rdrr"
CPU = "llama.cpp, CPU"
DEVICES: Mapping[str, str] = MappingProxyType({"llama.cpp, GPU": "Vulkan", CPU: "CPU"})
"""Runners of llama.cpp, each with a part of the name of its device."""

GATES: Mapping[str, tuple[float, float | None]] = MappingProxyType(
    {"llama.cpp, GPU": (0.36, 0.54), CPU: (1.0, None)}
)
"""The smallest ratio of rdrr's decode speed to llama.cpp's that passes, and the published ratio."""

CPU_TOKENS = 16
"""Maximum number of tokens that a run on the CPU generates."""


@dataclass(frozen=True)
class MeasuredRunner:
    """A runner and its measurements.

    Attributes:
        runner: The runner.
        device: Description of its device.
        tokens: Tokens to decode in a run.
        prefill: Seconds of the prefill, one element per round.
        decode: Seconds per decoded token, one element per round.
    """

    runner: Runner
    device: str
    tokens: int
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def run(self, work: Workload) -> tuple[float, float]:
        """Run once; return the seconds of the prefill and of one decoded token."""
        ids = work.ids(self.runner.vocab)
        prefill = self.runner.prefill(ids)
        given = (ids * -(-self.tokens // len(ids)))[: self.tokens]
        return prefill, self.runner.decode(given, len(ids)) / self.tokens

    def measure(self, work: Workload) -> None:
        """Run one round and add its times to `prefill` and `decode`."""
        prefill, decode = self.run(work)
        self.prefill.append(prefill)
        self.decode.append(decode)

    def as_dict(self, work: Workload) -> dict[str, Any]:
        """Return tokens per second for JSON."""
        return {
            "prefill_tokens_per_second": rates(work.prompt_tokens, self.prefill).as_dict(),
            "decode_tokens_per_second": rates(1, self.decode).as_dict(),
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the runners that can run here, print the table and return the figures."""
    work = workload(options)
    with ExitStack() as stack:
        obstacles: dict[str, str] = {}
        runners = dict(_peers(options.llama_cpp, options.gguf, work, stack, obstacles))
        software = False
        if options.package is None:
            obstacles[OURS] = "--package is not given"
        else:
            device = stack.enter_context(open_device(options.adapter))
            software = device.info.software
            ours = RdrrRunner(OURS, options.package, device, work)
            stack.callback(ours.close)
            runners[OURS] = MeasuredRunner(ours, device.info.name, work.tokens)
        for runner in runners.values():
            runner.run(work)  # compiles the kernels
        for _ in range(work.repeat):
            for runner in runners.values():
                runner.measure(work)
        result = {
            "schema": 1,
            **work.as_dict(),
            "devices": {name: runner.device for name, runner in runners.items()},
            "runners": {name: runner.as_dict(work) for name, runner in runners.items()},
            "not_run": obstacles,
            "ratios": [ratio.as_dict(software=software) for ratio in _ratios(runners)],
        }
    show(result)
    return result


def _ratios(runners: Mapping[str, MeasuredRunner]) -> Iterator[Ratio]:
    """Yield the ratio of rdrr's decode speed to that of each other runner."""
    ours = runners.get(OURS)
    for name, runner in runners.items():
        if ours is not None and runner is not ours:
            gate, published = GATES[name]
            yield Ratio.between(
                f"{OURS} over {name}", runner.decode, ours.decode, gate=gate, published=published
            )


def _peers(
    libraries: Path | None,
    gguf: Path | None,
    work: Workload,
    stack: ExitStack,
    obstacles: dict[str, str],
) -> Iterator[tuple[str, MeasuredRunner]]:
    """Yield llama.cpp's runner on each of its devices, by name.

    For a runner that is missing, the reason is written to `obstacles`.
    """
    given = (("--llama-cpp", libraries), ("--gguf", gguf))
    missing = [f"{name} is not given" for name, value in given if value is None]
    missing += [
        f"{path} does not exist" for _, path in given if path is not None and not path.exists()
    ]
    if missing or libraries is None or gguf is None:
        obstacles |= dict.fromkeys(DEVICES, "; ".join(missing))
        return
    try:
        library = LlamaCpp(stack.enter_context(unpacked(libraries)))
    except UnavailableError as error:
        obstacles |= dict.fromkeys(DEVICES, str(error))
        return
    for name in DEVICES:
        try:
            yield name, _peer(library, gguf, name, work, stack)
        except UnavailableError as error:
            obstacles[name] = str(error)


def _peer(
    library: LlamaCpp, gguf: Path, name: str, work: Workload, stack: ExitStack
) -> MeasuredRunner:
    device = library.device(DEVICES[name])
    model = PeerModel(library, gguf, device)
    stack.callback(model.close)
    runner = LlamaCppRunner(model, work.context, threads=_cores())
    stack.callback(runner.close)
    where = f"llama.cpp {library.version} on {device.name} ({device.description})"
    return MeasuredRunner(
        runner, where, min(work.tokens, CPU_TOKENS) if name == CPU else work.tokens
    )


def _cores() -> int:
    """Return the number of CPU cores that this process may use.

    They are set explicitly because llama.cpp's default is four threads.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def show(figures: Mapping[str, Any]) -> None:
    """Print the rates, the runners that did not run, and the ratios."""
    rows = [
        (name, *(f"{runner[key]['median']:,.1f}" for key in runner), figures["devices"][name])
        for name, runner in figures["runners"].items()
    ]
    rows += [(name, "not run", "not run", why) for name, why in figures["not_run"].items()]
    table(("runner", "prefill tokens/s", "decode tokens/s", ""), rows)
    show_ratios(figures["ratios"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "--llama-cpp",
        type=Path,
        metavar="PATH",
        help="llama.cpp's libraries: npm tarball or folder",
    )
    add("--gguf", type=Path, metavar="FILE", help="the model as a GGUF file, for llama.cpp")
    add("--package", type=Path, metavar="PATH", help="the same model as an rdrr package")
    add_workload(parser)
    options = parser.parse_args(arguments)
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
