"""Perplexity of a package on the fast paths beside the exact one, each by both kinds of passes.

    python benchmarks/bench_quality.py PACKAGE --text FILE [--tokens 400]

The exact path computes with float32 activations and a float32 cache; `int8` asks for int8 dot
products wherever a kernel has them; `default` is what `rdrr generate` does. Reading a prompt and
generating use different kernels, so the text goes through both: many tokens a pass, and one token
a pass (which is slow). A checkpoint's folder is converted first, to `--quantize`. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PATHS: Mapping[str, Mapping[str, Any]] = {
    "exact": {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"},
    "default": {},
    "int8": {"kernel_hints": {"q4kMatmul": "fused_q4k_int8"}},
}
"""Arguments of `rdrr.load` for each path; the first is what the others are compared with."""

PASSES = {"many tokens a pass": False, "one token a pass": True}


def measure(package: Path, text: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each path and kind of pass."""
    import rdrr
    from rdrr.evaluate import perplexity

    rows: list[dict[str, Any]] = []
    for path, arguments in PATHS.items():
        with rdrr.load(
            package, backend="wgpu", adapter=options.adapter, context=options.window, **arguments
        ) as model:
            for passes, stepwise in PASSES.items():
                found = perplexity(
                    model, text, window=options.window, limit=options.tokens, stepwise=stepwise
                )
                exact = next((row for row in rows if row["passes"] == passes), None)
                ratio = found.perplexity / exact["perplexity"] if exact else 1.0
                rows.append(
                    {
                        "path": path,
                        "passes": passes,
                        "adapter": model.info.adapter,
                        "not_followed": list(model.unhonoured_hints),
                        "tokens": found.tokens,
                        "perplexity": found.perplexity,
                        "over_exact": ratio,
                    }
                )
    return rows


def main() -> None:
    """Measure, print the table and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="a package, or a checkpoint to convert")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--quantize", default="q4_k_m")
    parser.add_argument("--adapter", help="part of an adapter's name")
    options = parser.parse_args()
    # Mesa's drivers complain, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with ExitStack() as stack:
        package = options.package
        if not (package / "manifest.json").is_file():
            import rdrr

            package = Path(stack.enter_context(tempfile.TemporaryDirectory())) / package.name
            rdrr.convert(options.package, package, quantize=options.quantize)
        rows = measure(package, options.text.read_text(encoding="utf-8"), options)
    print(f"{package.name} on {rows[0]['adapter']}, {rows[0]['tokens']} tokens")
    print(f"{'path':10}{'passes':22}{'perplexity':>12}{'against exact':>16}")
    for row in rows:
        change = f"{100 * (row['over_exact'] - 1):+.3f} %"
        print(f"{row['path']:10}{row['passes']:22}{row['perplexity']:12.4f}{change:>16}")
        for line in row["not_followed"]:
            print(f"          {line}")
    print(json.dumps({"benchmark": "quality", "package": package.name, "rows": rows}))


if __name__ == "__main__":
    main()
