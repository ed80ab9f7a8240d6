"""Find which operations lose accuracy in f16: round the values of one kind at a time.

    python benchmarks/bench_rounding.py --only gemma4 --seed 1 --seed 2
    python benchmarks/bench_rounding.py --only gemma4 --scores 0.125

The models are the tiny random ones of the tests, with weights in f16. The torch reference computes
each in float64; then again with the values of one kind of op rounded to f16, with those of all ops
rounded (as activations in f16 are), with keys and values rounded (as a cache in f16 does), and in
float32. An error is max|a - b| / max|b| over the logits of a row. `flips` counts the rows for which
a router chooses other experts. `--scores` multiplies the scores of attention. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _architecture_checks import CONTEXT, Model, Subject, subjects
from _clear_routes import reference_memory
from _script import table
from check_architectures import choose

F64 = npt.NDArray[np.float64]

_UNROUNDED = ("Router", "Head")
"""Kinds of op whose values are f32 even where activations are f16."""


@dataclass(frozen=True)
class Loss:
    """What rounding some values costs.

    Attributes:
        model: Name of the model.
        seed: Seed of weights and ids.
        rounded: What was rounded.
        largest: Largest error of a row.
        median: Median error over the rows.
        flips: Rows for which a router chooses other experts.
    """

    model: str
    seed: int
    rounded: str
    largest: float
    median: float
    flips: int


@dataclass(frozen=True)
class _Run:
    """The logits [rows, vocab] of one computation, and the sorted choices of its routers."""

    logits: F64
    routes: Sequence[npt.NDArray[np.int64]]


class _Rounding:
    """The reference with some values rounded to f16.

    Args:
        package: The model.
        scores: Factor on the scores of attention.
    """

    def __init__(self, package: Any, scores: float) -> None:
        import torch

        self._graph = replace(
            package.graph,
            ops=tuple(
                replace(op, scale=op.scale * scores) if type(op).__name__ == "Attention" else op
                for op in package.graph.ops
            ),
        )
        self._weights = {
            use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name))).double()
            for use in package.graph.weights()
        }

    @property
    def kinds(self) -> list[str]:
        """The kinds of op whose values may be rounded."""
        return sorted({type(op).__name__ for op in self._graph.ops} - set(_UNROUNDED))

    def run(
        self,
        ids: Sequence[int],
        kinds: Sequence[str] = (),
        *,
        cache: bool = False,
        f32: bool = False,
    ) -> _Run:
        """Compute the logits of ids.

        Args:
            ids: Token ids.
            kinds: Kinds of op whose values are rounded to f16.
            cache: Whether keys and values are rounded.
            f32: Whether to compute in float32 instead of float64.
        """
        import torch
        from rdrr_runtime.reference.ops import compute
        from rdrr_runtime.reference.run import ReferencePass

        dtype = torch.float32 if f32 else torch.float64
        graph = self._graph
        weights = {name: weight.to(dtype) for name, weight in self._weights.items()}
        memory = reference_memory(graph, weights, CONTEXT)
        rows = torch.arange(len(ids))
        run = ReferencePass(memory, torch.tensor(list(ids)), 0, rows, all_rows=True)
        routes = []
        with torch.no_grad():
            for op in graph.ops:
                if cache and type(op).__name__ == "Attention":
                    for name in filter(None, (op.k, op.v)):
                        run.values[name] = run.values[name].half().to(dtype)
                value = compute(run, op)
                if type(op).__name__ in kinds:
                    value = value.half().to(dtype)
                if type(op).__name__ == "Router":
                    routes.append(np.sort(value[0].long().numpy(), axis=-1))
                run.values[op.out] = value
        return _Run(run.values[graph.ops[-1].out].double().numpy(), routes)


def losses(subject: Subject, seed: int, scores: float) -> Iterator[Loss]:
    """Yield what each rounding costs for one model."""
    from rdrr_converter.convert import convert
    from rdrr_manifests.package import open_package

    with tempfile.TemporaryDirectory(prefix="rdrr-rounding-") as work:
        folder = Path(work)
        source = Model.make(subject, seed, folder / "model", scales_keys=False, clears_routes=False)
        convert(source.folder, folder / "package", quantize="f16")
        model = _Rounding(open_package(folder / "package"), scores)
    exact = model.run(source.ids)
    runs: list[tuple[str, dict[str, Any]]] = [
        ("nothing: f32", {"f32": True}),
        ("keys and values", {"cache": True}),
        *((kind, {"kinds": (kind,)}) for kind in model.kinds),
        ("all activations", {"kinds": model.kinds}),
    ]
    for name, how in runs:
        run = model.run(source.ids, **how)
        rows = np.abs(run.logits - exact.logits).max(axis=1) / np.abs(exact.logits).max()
        flips = sum(
            int((a != b).any(axis=-1).sum()) for a, b in zip(exact.routes, run.routes, strict=True)
        )
        yield Loss(subject.name, seed, name, float(rows.max()), float(np.median(rows)), flips)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="NAME", help="architecture or model type")
    add("--seed", action="append", type=int, metavar="N", help="seed of weights and ids")
    add("--scores", type=float, default=1.0, metavar="F", help="factor on scores of attention")
    options = parser.parse_args()
    chosen = choose(subjects(), options.only)
    if not chosen:
        parser.error(f"no model is called {', '.join(options.only)}")
    rows = [
        loss
        for subject in chosen
        for seed in options.seed or [1]
        for loss in losses(subject, seed, options.scores)
    ]
    table(
        ("model", "seed", "rounded", "largest", "median", "flips"),
        [
            (
                loss.model,
                str(loss.seed),
                loss.rounded,
                f"{loss.largest:.1e}",
                f"{loss.median:.1e}",
                str(loss.flips),
            )
            for loss in rows
        ],
    )
    print(json.dumps({"benchmark": "rounding", "rows": [asdict(loss) for loss in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
