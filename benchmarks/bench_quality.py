"""Perplexity of a package on the fast paths beside the exact one, each by both kinds of passes.

    python benchmarks/bench_quality.py PACKAGE --text FILE [--tokens 4000]

The exact path computes with float32 activations and a float32 cache; `int8` asks for int8 dot
products wherever a kernel has them; `default` is what `rdrr generate` does. Prefill and decode use
different kernels, and so do batches and draft tokens to verify. The text goes through all three:
many tokens a pass, one token a pass (which is slow), and a few. Differences come with their
standard error: below two or three of them a difference means nothing, so give enough tokens. A
checkpoint's folder is converted first, to `--quantize`. The last line is one JSON object.

    python benchmarks/bench_quality.py CHECKPOINT --text FILE --quality both

compares `--quality ref` and `best` of the converter instead, each beside the checkpoint in
float32, on the exact path and many tokens a pass; `--imatrix FILE` goes to both conversions.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import rdrr
    from rdrr_device.device import Device

EXACT: Mapping[str, Any] = {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}
PATHS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "int8": {"kernel_hints": {"q4kMatmul": "fused_q4k_int8"}},
}
"""Arguments of `rdrr.load` for each path."""

PASSES = {"many tokens a pass": False, "one token a pass": True}
FEW = 8
"""Tokens of a pass over a few."""


class FewTokens:
    """A model that is asked for its logits by passes over a few tokens.

    Args:
        model: Whose tokens and package these are.
        device: Where it runs.
        arguments: Those of `rdrr.load`.
        context: KV slots.
    """

    def __init__(
        self, model: rdrr.Model, device: Device, arguments: Mapping[str, Any], context: int
    ) -> None:
        from rdrr_runtime.compile.hints import resolve
        from rdrr_runtime.gpu import GpuBackend

        policy = resolve({"run flag": arguments.get("kernel_hints", {})})
        self.package, self.encode = model.package, model.encode
        self._backend = GpuBackend(model.package, context=context, device=device, policy=policy)

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """As `rdrr.Model.logits`, a few ids at a time."""
        del stepwise
        parts = [ids[start : start + FEW] for start in range(0, len(ids), FEW)]
        return np.concatenate(
            [
                self._backend.window_logits(part, FEW * at, wanted=len(part))
                for at, part in enumerate(parts)
            ]
        )

    def as_model(self) -> rdrr.Model:
        """Return this object as the model whose logits, tokens and package it has."""
        return cast("rdrr.Model", self)

    def close(self) -> None:
        """Free its memory."""
        self._backend.close()


def measure(package: Path, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each path and kind of pass."""
    import rdrr
    from rdrr.evaluate import compare
    from rdrr_device.device import open_device

    rows: list[dict[str, Any]] = []
    load = partial(rdrr.load, package, backend="wgpu", adapter=options.adapter)
    sizes = {"window": options.window, "limit": options.tokens}
    with ExitStack() as stack:
        device = open_device(options.adapter)
        stack.callback(device.close)
        exact = stack.enter_context(load(context=options.window, **EXACT))
        for path, arguments in PATHS.items():
            with load(context=options.window, **arguments) as model:
                details = {"path": path, "adapter": model.info.adapter}
                few = FewTokens(model, device, arguments, options.window)
                found = {
                    passes: compare(model, exact, text, stepwise=stepwise, **sizes)
                    for passes, stepwise in PASSES.items()
                }
                found[f"{FEW} tokens a pass"] = compare(few.as_model(), exact, text, **sizes)
                few.close()
                not_followed = {"not_followed": list(model.unhonoured_hints)}
            rows += [
                details | {"passes": passes} | one.as_dict() | not_followed
                for passes, one in found.items()
            ]
    return rows


def measure_search(
    checkpoint: Path, text: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each quality of the conversion, beside float32; the last one beside ggml's."""
    import rdrr
    from rdrr.evaluate import compare

    limits = {"window": options.window, "limit": options.tokens}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        models = {}
        for quality in ("f32", "ref", "best"):
            folder = Path(name) / quality
            rdrr.convert(
                checkpoint,
                folder,
                quantize="f32" if quality == "f32" else options.quantize,
                k_tail=options.k_tail,
                quality="best" if quality == "best" else "ref",
                imatrix=None if quality == "f32" else options.imatrix,
            )
            where = {"backend": options.backend, "adapter": options.adapter}
            models[quality] = stack.enter_context(
                rdrr.load(folder, context=options.window, **where, **EXACT)
            )
        pairs = (("ref", "f32"), ("best", "f32"), ("best", "ref"))
        return [
            {"quality": one, "beside": other, "adapter": models[one].info.adapter}
            | compare(models[one], models[other], text, **limits).as_dict()
            for one, other in pairs
        ]


def show_search(rows: list[dict[str, Any]]) -> None:
    """The table of `measure_search`."""
    print(f"{'quality':9}{'beside':8}{'perplexity':>11}{'difference':>26}{'divergence':>12}")
    for row in rows:
        change = f"{100 * (row['ratio'] - 1):+.3f} % (error {100 * row['ratio_error']:.3f})"
        print(
            f"{row['quality']:9}{row['beside']:8}{row['perplexity']:11.4f}{change:>26}"
            f"{row['mean_divergence']:12.6f}"
        )


def main() -> None:
    """Measure, print the table and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="a package, or a checkpoint to convert")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--quantize", default="q4_k_m")
    parser.add_argument("--adapter", help="part of an adapter's name")
    parser.add_argument("--quality", choices=["both"], help="compare the converter's qualities")
    parser.add_argument("--k-tail", default="pad", help="of the conversions of --quality both")
    parser.add_argument("--imatrix", type=Path, help="for the conversions of --quality both")
    parser.add_argument("--backend", default="wgpu", help="of --quality both")
    options = parser.parse_args()
    # Mesa's drivers complain, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    if options.quality:
        rows = measure_search(options.package, options.text.read_text(encoding="utf-8"), options)
        print(f"{options.package.name}, {options.quantize}, {rows[0]['tokens']} tokens")
        show_search(rows)
        found = {"benchmark": "quality", "package": options.package.name, "rows": rows}
        print(json.dumps(found))
        return
    with ExitStack() as stack:
        package = options.package
        if not (package / "manifest.json").is_file():
            import rdrr

            package = Path(stack.enter_context(tempfile.TemporaryDirectory())) / package.name
            rdrr.convert(options.package, package, quantize=options.quantize)
        rows = measure(package, options.text.read_text(encoding="utf-8"), options)
    print(f"{package.name} on {rows[0]['adapter']}, {rows[0]['tokens']} tokens")
    print(
        f"{'path':9}{'passes':20}{'perplexity':>11}{'exact':>10}{'difference':>26}{'same top':>10}"
    )
    for row in rows:
        change = f"{100 * (row['ratio'] - 1):+.3f} % (error {100 * row['ratio_error']:.3f})"
        print(
            f"{row['path']:9}{row['passes']:20}{row['perplexity']:11.4f}"
            f"{row['base']['perplexity']:10.4f}{change:>26}{100 * row['same_top']:8.2f} %"
        )
        for line in row["not_followed"]:
            print(f"         {line}")
    print(json.dumps({"benchmark": "quality", "package": package.name, "rows": rows}))


if __name__ == "__main__":
    main()
