"""Compare packages of one size: the usual mix, and types chosen by measured error.

    python benchmarks/bench_sizes.py CHECKPOINT --text FILE [--tokens 8000] [--bits 4.6 5.5]
        [--quality ref best gptq best,gptq] [--layout rows "transposed, fused"] [--device cuda]
        [--peer PATH [--mixes q3_k_l q4_k_s q4_k_m]]

Each package is compared with the checkpoint in float32 on the exact path: mean divergence of the
predictions (nats a token, with its standard error), perplexity and how often both find the same
token most probable. The text must not be the one on which sensitivities are measured: phrases that
both have are refused. Windows are taken from all over the text. `--bits` adds packages of that many
bits a weight beside those of the mix's size. `--peer` adds the mixes of llama.cpp's own quantizer,
each without and with an importance matrix of the same calibration text: their values run on the
same path, and their bytes are those of the tensors in the GGUF file. It is the npm package that
`benchmarks/README.md` names. With `--device cuda` torch runs the models there. Each step is
reported on stderr with the seconds since the start. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from _script import finish, table
from rdrr._convert import calibration_text
from rdrr._measurement import spread
from rdrr_format.errors import UsageError

if TYPE_CHECKING:
    import rdrr

LAYOUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"rows": {}, "transposed, fused": {"transpose_weights": True, "fuse_gate_up": True}}
)
PEER = "llama.cpp"
"""What stands for the layout in the rows of llama.cpp's quantizer."""

WINDOW = 256
MIX = "q4_k_m"
MIXES = ("q3_k_l", "iq4_xs", "q4_k_s", "q4_k_m", "q5_k_m", "q6_k")
"""Mixes of llama.cpp's quantizer, about 4 to 6.6 bits a weight."""

_START = time.monotonic()

PHRASE = 12
"""Words of a phrase that may not stand in both texts."""


def shared_phrases(text: str, other: str) -> list[str]:
    """Return phrases of `PHRASE` words that stand in both texts."""
    return sorted(_phrases(text) & _phrases(other))


def _phrases(text: str) -> set[str]:
    words = text.split()
    return {" ".join(words[at : at + PHRASE]) for at in range(len(words) - PHRASE + 1)}


def measure(options: argparse.Namespace, text: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each package."""
    import rdrr
    from rdrr.importance import measure_importance

    plain, matrix = folder / "f32", folder / "sensitivity.gguf"
    rdrr.convert(options.checkpoint, plain, quantize="f32")
    report("the checkpoint is converted to F32")
    calibration, device = calibration_text(), options.device
    measure_importance(
        plain, calibration, matrix, window=WINDOW, limit=8192, sensitivity=True, device=device
    )
    report("sensitivities are measured")
    with closing(_exact(plain, device)) as base:
        ids = spread(base.encode(text), options.tokens, WINDOW)
        if options.peer is not None:
            yield from _peer_rows(options, folder, base, ids)
        for layout in options.layout:
            arguments = LAYOUTS[layout]
            usual = rdrr.convert(options.checkpoint, folder / "usual", overwrite=True, **arguments)
            yield _row((layout, MIX), usual, base, ids, device)
            limits = [("its size", {"size": usual.total_size})]
            limits += [(f"{bits} bits", {"bits_per_weight": bits}) for bits in options.bits]
            for name, limit in limits:
                for quality in options.quality:
                    how = {"quality": quality, "imatrix": matrix, "device": device}
                    chosen = {**arguments, **limit, **how}
                    sized = rdrr.convert(options.checkpoint, folder / "a", overwrite=True, **chosen)
                    report("; ".join(("converted", *sized.notes)))
                    yield _row((layout, f"{name}, {quality}"), sized, base, ids, device)


def _peer_rows(
    options: argparse.Namespace, folder: Path, base: rdrr.Model, ids: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each mix of llama.cpp's quantizer, without and with an importance matrix."""
    import rdrr
    from gguf import GGUFReader
    from peers.llama_cpp import LlamaCpp, unpacked
    from peers.llama_quantizer import quantize
    from rdrr.importance import measure_importance
    from rdrr_converter.gguf.imatrix import read_imatrix

    source, matrix = folder / "f32.gguf", folder / "importance.gguf"
    rdrr.export(folder / "f32", source, to="gguf")
    measure_importance(folder / "f32", calibration_text(), matrix, window=WINDOW, limit=8192)
    with unpacked(options.peer) as libraries:
        library = LlamaCpp(libraries)
        for mix in options.mixes:
            for name, importance in (("", None), (", imatrix", read_imatrix(matrix))):
                file = folder / "peer.gguf"
                quantize(library, source, file, mix, importance)
                size = sum(int(tensor.n_bytes) for tensor in GGUFReader(file).tensors)
                # Values, not blocks: a package cannot store every type of these mixes.
                values = rdrr.convert(file, folder / "peer", overwrite=True, quantize="f32")
                row = _row((PEER, f"{mix}{name}"), values, base, ids, options.device)
                yield row | {"bytes": size}


def _exact(package: str | Path, device: str) -> rdrr.Model:
    """Load a package in float32, without fusion, on a device of torch."""
    from rdrr._backends import OpenedBackend
    from rdrr._model import Model
    from rdrr_manifests.package import open_package
    from rdrr_runtime.reference.backend import CpuBackend

    opened = open_package(package)
    backend = CpuBackend(opened, context=WINDOW, device=device)
    return Model(opened, OpenedBackend(backend, f"torch on {device}", ()))


def _row(
    names: tuple[str, str], result: Any, base: rdrr.Model, ids: Sequence[int], device: str
) -> dict[str, Any]:
    """Return the row of a package, by its layout and the name of its mix."""
    from rdrr.evaluate import compare

    with closing(_exact(result.destination, device)) as model:
        compared = compare(model, base, ids, window=WINDOW)
    row = dict(zip(("layout", "package"), names, strict=True))
    row |= {"bytes": result.total_size} | compared.as_dict()
    figures = f"{row['mean_divergence']:.6f} ± {row['divergence_error']:.6f}"
    report(f"{', '.join(names)}: {result.total_size:,} bytes, divergence {figures}")
    return row


def report(what: str) -> None:
    """Print what is done, and the seconds since the start."""
    print(f"{time.monotonic() - _START:6.1f} s: {what}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all packages and print the table.

    Raises:
        UsageError: The text has phrases of the one on which sensitivities are measured.
    """
    text = options.text.read_text(encoding="utf-8")
    shared = shared_phrases(text, calibration_text())
    if shared:
        raise UsageError(
            "the text has phrases of the calibration text", where=options.text, found=shared[0]
        )
    with tempfile.TemporaryDirectory() as name:
        rows = list(measure(options, text, Path(name)))
    print(f"{options.checkpoint.name}, {rows[0]['tokens']} tokens")
    mixes = {row["layout"]: row["mean_divergence"] for row in rows if row["package"] == MIX}
    usual = next(iter(mixes.values()), float("nan"))
    table(
        ("layout", "package", "bytes", "perplexity", "divergence", "to the mix", "same top"),
        (_cells(row, mixes.get(row["layout"], usual)) for row in rows),
    )
    return {"benchmark": "sizes", "checkpoint": options.checkpoint.name, "rows": rows}


def _cells(row: dict[str, Any], mix: float) -> tuple[str, ...]:
    return (
        row["layout"],
        row["package"],
        f"{row['bytes']:,}",
        f"{row['perplexity']:.4f}",
        f"{row['mean_divergence']:.6f} ± {row['divergence_error']:.6f}",
        f"{100 * (row['mean_divergence'] / mix - 1):+.1f} %",
        f"{100 * row['same_top']:.2f} %",
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="text file in UTF-8")
    parser.add_argument("--tokens", type=int, default=8000, help="tokens of the text to evaluate")
    parser.add_argument("--quality", nargs="*", default=["ref", "best"], help="such as best,gptq")
    parser.add_argument("--device", default="cpu", help="where torch runs the models: cuda")
    parser.add_argument("--layout", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--bits", type=float, nargs="*", default=[], help="further sizes")
    parser.add_argument("--peer", type=Path, help="llama.cpp's shared libraries")
    parser.add_argument("--mixes", nargs="*", default=list(MIXES), help="mixes of llama.cpp")
    options = parser.parse_args()
    return finish(partial(run, options))


if __name__ == "__main__":
    sys.exit(main())
