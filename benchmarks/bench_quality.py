"""Compare the perplexity of a package on the fast paths with that on the exact path.

    python benchmarks/bench_quality.py PACKAGE --text FILE [--tokens 4000]

The exact path computes with float32 activations and a float32 cache; `int8` uses int8 dot products
wherever a kernel has them; `default` is what `rdrr generate` does. Prefill and decode use different
kernels, and small batches (batched decode, verifying draft tokens) use a third kind. So the text is
evaluated with many tokens per pass, one token per pass (which is slow) and 8 tokens per pass, and
with `--one-dispatch` also with one token per pass in a single dispatch. Each
difference is printed with its standard error: a difference below two or three standard errors
means nothing, so give enough tokens. A checkpoint is converted to `--quantize` first. The last line
is one JSON object.

    python benchmarks/bench_quality.py CHECKPOINT --text FILE --quality both

compares the converter's `--quality ref` and `best` instead, each with the checkpoint in float32, on
the exact path with many tokens per pass. `--imatrix FILE` is used by both conversions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from _script import prepare_environment

if TYPE_CHECKING:
    import numpy.typing as npt
    import rdrr
    from rdrr_device.device import Device

EXACT: Mapping[str, Any] = {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}
PATHS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "int8": {"kernel_hints": {"q4kMatmul": "fused_q4k_int8"}},
}
"""Arguments of `rdrr.load` for each fast path."""

PASSES = {"many tokens per pass": False, "one token per pass": True}
"""Whether the model runs stepwise, by name of the kind of pass."""

SMALL_PASS = 8
"""Tokens of a pass that runs the kernels of small batches."""


class SmallPassModel:
    """A model that computes its logits in passes over 8 tokens, for `rdrr.evaluate.compare`.

    Args:
        model: Model with the same package and tokenizer.
        device: GPU to load it on.
        arguments: Arguments of `rdrr.load`.
        context: Slots of the key-value cache.
    """

    def __init__(
        self, model: rdrr.Model, device: Device, arguments: Mapping[str, Any], context: int
    ) -> None:
        from rdrr_runtime.compile.choice.hints import resolve
        from rdrr_runtime.gpu import GpuBackend

        policy = resolve({"run flag": arguments.get("kernel_hints", {})})
        self.package, self.encode = model.package, model.encode
        self._backend = GpuBackend(model.package, context=context, device=device, policy=policy)

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """Return the same as `rdrr.Model.logits`, computed with 8 tokens per pass."""
        del stepwise
        parts = [ids[start : start + SMALL_PASS] for start in range(0, len(ids), SMALL_PASS)]
        return np.concatenate(
            [
                self._backend.window_logits(part, SMALL_PASS * at, last_n=len(part))
                for at, part in enumerate(parts)
            ]
        )

    def as_model(self) -> rdrr.Model:
        """Return this object typed as a model; it has the members that `compare` uses."""
        return cast("rdrr.Model", self)

    def close(self) -> None:
        """Free the memory of the model."""
        self._backend.close()


class OneDispatchModel(SmallPassModel):
    """A model that computes its logits in passes over one token, each of them in one dispatch."""

    def __init__(
        self, model: rdrr.Model, device: Device, arguments: Mapping[str, Any], context: int
    ) -> None:
        from rdrr._executor import persistence
        from rdrr_runtime.compile.choice.hints import resolve
        from rdrr_runtime.gpu import GpuBackend

        self.package, self.encode, self._device = model.package, model.encode, device
        self._backend = GpuBackend(
            model.package,
            context=context,
            device=device,
            policy=resolve({"run flag": arguments.get("kernel_hints", {})}),
            persistence=persistence(device, "persistent"),
        )

    def logits(self, ids: Sequence[int], *, stepwise: bool = False) -> npt.NDArray[np.float32]:
        """Return the same as `rdrr.Model.logits`.

        Raises:
            RuntimeError: The model cannot run in one dispatch on this device.
        """
        from rdrr_runtime.exec.persistent.executor import PersistentExecutor
        from rdrr_runtime.sequences.step import Step

        del stepwise
        executor, plan = self._backend._executor, self._backend._plan
        if not isinstance(executor, PersistentExecutor):
            raise RuntimeError("the model cannot run in one dispatch on this device")
        # Without the last phase, which would choose the next token itself.
        whole = executor.on_grid(plan.decode)
        prepared = executor.prepare_without(whole, whole.phases[-1:])
        step, logits = Step(self._device, plan.state), []
        for slot, token in enumerate(ids):
            step.write([token], slot)
            executor.run(prepared, 1)
            logits.append(self._device.read(whole.logits).view(np.float32).copy())
        if executor.has_given_up():
            raise RuntimeError("a pass gave up")
        return np.stack(logits)


def measure(package: Path, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each fast path and kind of pass."""
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
                few = SmallPassModel(model, device, arguments, options.window)
                compared = {
                    passes: compare(model, exact, text, stepwise=stepwise, **sizes)
                    for passes, stepwise in PASSES.items()
                }
                compared[f"{SMALL_PASS} tokens per pass"] = compare(
                    few.as_model(), exact, text, **sizes
                )
                few.close()
                if options.one_dispatch:
                    whole = OneDispatchModel(model, device, arguments, options.window)
                    compared["one token in one dispatch"] = compare(
                        whole.as_model(), exact, text, **sizes
                    )
                    whole.close()
                unhonoured = {"unhonoured_hints": list(model.unhonoured_hints)}
            rows += [
                details | {"passes": passes} | result.as_dict() | unhonoured
                for passes, result in compared.items()
            ]
    return rows


def measure_qualities(
    checkpoint: Path, text: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each quality against float32, and one for `best` against `ref`.

    `ref` gives the same blocks as ggml.
    """
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
            {"quality": quality, "reference": other, "adapter": models[quality].info.adapter}
            | compare(models[quality], models[other], text, **limits).as_dict()
            for quality, other in pairs
        ]


def show_qualities(rows: list[dict[str, Any]]) -> None:
    """Print the table of `measure_qualities`."""
    print(f"{'quality':9}{'reference':10}{'perplexity':>11}{'difference':>26}{'divergence':>12}")
    for row in rows:
        change = f"{100 * (row['ratio'] - 1):+.3f} % (error {100 * row['ratio_error']:.3f})"
        print(
            f"{row['quality']:9}{row['reference']:10}{row['perplexity']:11.4f}{change:>26}"
            f"{row['mean_divergence']:12.6f}"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="a package, or a checkpoint to convert")
    parser.add_argument("--text", type=Path, required=True, help="text file in UTF-8")
    parser.add_argument("--one-dispatch", action="store_true", help="also one token in a dispatch")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of the text to evaluate")
    parser.add_argument("--window", type=int, default=256, help="tokens of each window")
    parser.add_argument("--quantize", default="q4_k_m", help="quantization of a checkpoint")
    parser.add_argument("--adapter", help="use the adapter whose name contains this")
    parser.add_argument("--quality", choices=["both"], help="compare the converter's qualities")
    parser.add_argument("--k-tail", default="pad", help="--k-tail of both conversions")
    parser.add_argument("--imatrix", type=Path, help="importance matrix of both conversions")
    parser.add_argument("--backend", default="wgpu", help="backend for --quality both")
    options = parser.parse_args()
    prepare_environment()
    if options.quality:
        rows = measure_qualities(options.package, options.text.read_text(encoding="utf-8"), options)
        print(f"{options.package.name}, {options.quantize}, {rows[0]['tokens']} tokens")
        show_qualities(rows)
        record = {"benchmark": "quality", "package": options.package.name, "rows": rows}
        print(json.dumps(record))
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
        f"{'path':9}{'passes':26}{'perplexity':>11}{'exact':>10}{'difference':>26}{'same top':>10}"
    )
    for row in rows:
        change = f"{100 * (row['ratio'] - 1):+.3f} % (error {100 * row['ratio_error']:.3f})"
        print(
            f"{row['path']:9}{row['passes']:26}{row['perplexity']:11.4f}"
            f"{row['base']['perplexity']:10.4f}{change:>26}{100 * row['same_top']:8.2f} %"
        )
        for line in row["unhonoured_hints"]:
            print(f"         {line}")
    print(json.dumps({"benchmark": "quality", "package": package.name, "rows": rows}))


if __name__ == "__main__":
    main()
