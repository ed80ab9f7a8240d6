"""Compare the speed of rdrr, of its browser runtime and of DOPPLER on the same packages.

    python benchmarks/bench_doppler.py --pack FILE
    python benchmarks/bench_doppler.py --peer FILE --shapes llama-1b,gemma3-1b --webgpu wgpu,dawn

The first form packs Node, Dawn and DOPPLER, which `.ci/dawn` sets up, into one archive; the second
unpacks and runs them. For each shape a package with random weights is made with the profile
`doppler`. rdrr runs it in Python, one dispatch a phase; the browser runtime and DOPPLER, the public
runtime, run it through Dawn in Node. All decode greedily, one round after the other. The browser
runtime plays the programs that `rdrr web` writes. DOPPLER runs as the package asks (it reads every
token back), and with tokens read back in batches of 8, as rdrr does; `--node` leaves one of these
out, which matters on machines that are lent by the minute: DOPPLER takes most of the time. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from _prepared import Clock, package
from _runners import INTERVAL, rates
from _script import add_workload, finish, keep_busy, table, workload
from peers.in_node import BROWSER_RUNTIME, DOPPLER, Generation, InNode, NodeError, pack, unpacked
from rdrr import web
from rdrr._load_options import WEBGPU
from rdrr.bench.runs import LoadedAs, Workload, generate, load, open_device
from rdrr_format.errors import DeviceError, RdrrError
from shapes import SHAPES

if TYPE_CHECKING:
    from rdrr_device.device import Device

BUSY_SECONDS = 0.4
PYTHON, NODE = "rdrr (Python, {})", "rdrr (Node, dawn)"
ASKED = "DOPPLER (Node, dawn), as the package asks"
BATCHES = f"DOPPLER (Node, dawn), {INTERVAL} tokens at a time"
IN_NODE = ("browser", "batches", "asked")


class Runtime(Protocol):
    """A loaded package that generates greedily."""

    def generate(self, prompt: Sequence[int], tokens: int) -> Generation:
        """Generate and return the ids and the seconds."""

    def close(self) -> None:
        """Free the model."""


class Rdrr:
    """A package on rdrr's GPU backend.

    Args:
        folder: The package.
        device: GPU to load it on.
        work: The workload, which sets the size of the cache.
    """

    def __init__(self, folder: Path, device: Device, work: Workload) -> None:
        from rdrr_manifests.package import open_package

        self.adapter = device.info.name
        self._backend = load(open_package(folder), device, work, LoadedAs())

    def generate(self, prompt: Sequence[int], tokens: int) -> Generation:
        """See `Runtime.generate`."""
        from rdrr_runtime.decode.autoregressive import Autoregressive

        run = generate(self._backend, Autoregressive(INTERVAL), prompt, tokens)
        return Generation(run.ids, run.first_seconds + run.decode_seconds)

    def close(self) -> None:
        """See `Runtime.close`."""
        self._backend.close()


@dataclass
class Measured:
    """A runtime and its measurements.

    Attributes:
        runtime: The runtime.
        adapter: Name of its adapter.
        ids: The ids of the last round.
        prefill: Seconds to the first id, one element per round.
        decode: Seconds per further id, one element per round.
    """

    runtime: Runtime
    adapter: str
    ids: tuple[int, ...] = ()
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def round(self, prompt: Sequence[int], tokens: int) -> None:
        """Generate one id and then `tokens`, and keep the figures.

        Decoding is the difference of the two, since DOPPLER reports several ids at once.
        """
        first = self.runtime.generate(prompt, 1).seconds
        generation = self.runtime.generate(prompt, tokens)
        self.ids = generation.ids
        self.prefill.append(first)
        self.decode.append((generation.seconds - first) / max(len(generation.ids) - 1, 1))

    def last(self, work: Workload) -> str:
        """Return the figures of the last round, for people who wait."""
        prefill, decode = work.prompt_tokens / self.prefill[-1], 1 / self.decode[-1]
        return f"prefill {prefill:,.1f}, decode {decode:,.1f} tokens/s"


def with_programs(folder: Path, targets: Sequence[Path]) -> Path:
    """Write the programs of a package for the browser runtime beside it, and return the package."""
    web(folder, targets=targets)
    return folder


def with_batches(folder: Path, into: Path, size: int) -> Path:
    """Return a copy of a package whose manifest lets DOPPLER decode `size` tokens at a time.

    The weights are linked, not copied.
    """
    into.mkdir()
    for path in folder.iterdir():
        if path.name != "manifest.json":
            (into / path.name).symlink_to(path.resolve())
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    loop = manifest["inference"]["session"]["decodeLoop"]
    loop |= {"batchSize": size, "readbackInterval": size}
    (into / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return into


def open_runtimes(
    folder: Path, options: argparse.Namespace, peer: Path, stack: ExitStack
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Load a package in every runtime; also return why one of them cannot run it, by its name."""
    opened: dict[str, Measured] = {}
    obstacles: dict[str, str] = {}
    for implementation in options.webgpu.split(","):
        device = stack.enter_context(open_device(options.adapter, implementation))
        runtime = Rdrr(folder, device, workload(options))
        stack.callback(runtime.close)
        opened[PYTHON.format(implementation)] = Measured(runtime, runtime.adapter)
    scratch = Path(stack.enter_context(TemporaryDirectory(prefix="doppler-package-")))
    runs = {
        "browser": (NODE, BROWSER_RUNTIME, partial(with_programs, folder, options.target)),
        "batches": (BATCHES, DOPPLER, partial(with_batches, folder, scratch / "batches", INTERVAL)),
        "asked": (ASKED, DOPPLER, partial(Path, folder)),
    }
    for name, program, prepared in map(runs.__getitem__, options.node.split(",")):
        try:
            process = InNode(program, peer, prepared())
        except (NodeError, RdrrError) as error:
            obstacles[name] = str(error)
        else:
            stack.callback(process.close)
            opened[name] = Measured(process, process.adapter)
    return opened, obstacles


def measure_shape(shape: str, options: argparse.Namespace, peer: Path) -> dict[str, Any]:
    """Measure all runtimes on one shape and return the figures."""
    work = workload(options)
    folder = package(options.work, shape, "doppler", Clock(), quantize="q4_k_m", profile="doppler")
    prompt = work.ids(SHAPES[shape].vocab)
    with ExitStack() as stack:
        opened, obstacles = open_runtimes(folder, options, peer, stack)
        for name, measured in list(opened.items()):
            try:
                measured.runtime.generate(prompt, work.tokens)  # compiles the kernels
            except NodeError as error:
                obstacles[name] = str(error)
                del opened[name]
        for _ in range(work.repeat):
            for name, measured in opened.items():
                keep_busy(partial(measured.runtime.generate, prompt[:8], 8), options.busy)
                measured.round(prompt, work.tokens)
                # A run that is cut off by a limit of time leaves these lines.
                print(f"{shape}, {name}: {measured.last(work)}", file=sys.stderr, flush=True)
    ours = next(iter(opened.values())).ids
    figures = {name: _figures(measured, work, ours) for name, measured in opened.items()}
    return {"shape": shape, "runtimes": figures, "not_run": obstacles}


def _figures(measured: Measured, work: Workload, ours: Sequence[int]) -> dict[str, Any]:
    return {
        "adapter": measured.adapter,
        "ids_equal": _equal_at_the_start(measured.ids, ours),
        "ids": len(measured.ids),
        "prefill_tokens_per_second": rates(work.prompt_tokens, measured.prefill).as_dict(),
        "decode_tokens_per_second": rates(1, measured.decode).as_dict(),
    }


def _equal_at_the_start(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of ids before the first difference."""
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every shape, print the table and return the figures."""
    options.work.mkdir(parents=True, exist_ok=True)
    headings = ("shape, runtime", "prefill tokens/s", "decode tokens/s", "ids equal", "adapter")
    shapes: list[dict[str, Any]] = []
    try:
        with unpacked(options.peer) as peer:
            for shape in options.shapes.split(","):
                shapes.append(measure_shape(shape, options, peer))
                table(headings, _rows(shapes[-1]))
    except NodeError as error:
        raise DeviceError("Node does not run here", found=error) from error
    return {"schema": 1, **workload(options).as_dict(), "shapes": shapes}


def _rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, runtime in measured["runtimes"].items():
        speeds = [
            f"{runtime[f'{key}_tokens_per_second']['median']:,.1f}" for key in ("prefill", "decode")
        ]
        equal = f"{runtime['ids_equal']} of {runtime['ids']}"
        yield (f"{measured['shape']}, {name}", *speeds, equal, runtime["adapter"])
    for name, why in measured["not_run"].items():
        yield (f"{measured['shape']}, {name}", "not run", "not run", "", why.splitlines()[0][:120])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pack", type=Path, metavar="FILE", help="write the archive and stop")
    what.add_argument("--peer", type=Path, metavar="PATH", help="archive, or the folder .dawn")
    add("--dawn", type=Path, default=Path(".dawn"), help="what .ci/dawn has set up, for --pack")
    add("--shapes", default="llama-1b,gemma3-1b", metavar="NAMES", help="shapes of shapes.py")
    add("--webgpu", default="wgpu", metavar="NAMES", help=f"in Python: {', '.join(WEBGPU[1:])}")
    add("--node", default=",".join(IN_NODE), metavar="NAMES", help=f"in Node: {','.join(IN_NODE)}")
    add("--target", type=Path, action="append", default=[], metavar="FILE",
        help="device that `rdrr web` plans for, in place of its usual ones")  # fmt: skip
    add("--work", type=Path, default=Path("bench-work"), metavar="DIR", help="folder of packages")
    add("--busy", type=float, default=BUSY_SECONDS, metavar="S", help="warm up for so long")
    add_workload(parser)
    options = parser.parse_args(arguments)
    for name, known in (("node", IN_NODE), ("webgpu", WEBGPU)):
        if set(getattr(options, name).split(",")) - set(known):
            parser.error(f"--{name}: expected {', '.join(known)}, found {getattr(options, name)}")
    if options.pack is not None:
        pack(options.dawn, options.pack)
        size = options.pack.stat().st_size
        return finish(lambda: {"archive": str(options.pack), "bytes": size})
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
