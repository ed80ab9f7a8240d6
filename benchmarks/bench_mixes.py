"""Compare every quantization mix with llama.cpp's quantizer: types and bytes of all tensors.

    python benchmarks/bench_mixes.py CHECKPOINT --peer PATH [--imatrix FILE]

The checkpoint is exported as a GGUF file in F32, which llama.cpp quantizes; rdrr converts it to the
same mix with `--k-tail ggml` and exports that. Nothing is timed. `--peer` is the npm package that
`benchmarks/README.md` names; no GPU is needed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import rdrr
from gguf import GGUFReader
from peers.llama_cpp import LlamaCpp, unpacked
from peers.llama_quantizer import FILE_TYPES, quantize
from rdrr_converter.gguf.imatrix import read_imatrix
from rdrr_converter.recipes import RECIPES


def compare(theirs: Path, ours: Path) -> dict[str, Any]:
    """Compare two GGUF files: count the tensors they share and list those that differ.

    Args:
        theirs: File that llama.cpp wrote.
        ours: File that rdrr wrote.
    """
    left, right = (
        {tensor.name: tensor for tensor in GGUFReader(path).tensors} for path in (theirs, ours)
    )
    shared = [name for name in left if name in right]
    types = [name for name in shared if left[name].tensor_type != right[name].tensor_type]
    values = [
        name
        for name in shared
        if name not in types and not np.array_equal(left[name].data, right[name].data)
    ]
    return {
        "tensors": len(shared),
        "in_one_only": sorted(left.keys() ^ right.keys()),
        "other_type": types,
        "other_bytes": values,
    }


def main() -> None:
    """Compare all mixes and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder of a checkpoint")
    parser.add_argument("--peer", type=Path, required=True, help="llama.cpp's shared libraries")
    parser.add_argument("--imatrix", type=Path, help="also quantize with this importance matrix")
    mixes = ",".join(mix for mix in FILE_TYPES if mix in RECIPES)
    parser.add_argument("--mixes", default=mixes, help="mixes to compare")
    options = parser.parse_args()
    rows = []
    with unpacked(options.peer) as libraries, tempfile.TemporaryDirectory() as name:
        library, work = LlamaCpp(libraries), Path(name)
        rdrr.convert(options.checkpoint, work / "f32", quantize="f32")
        rdrr.export(work / "f32", work / "f32.gguf", to="gguf")
        for recipe in options.mixes.split(","):
            for imatrix in (None, options.imatrix) if options.imatrix else (None,):
                stem = work / f"{recipe}-{'imatrix' if imatrix else 'plain'}"
                theirs, ours = stem.with_suffix(".theirs.gguf"), stem.with_suffix(".ours.gguf")
                importance = read_imatrix(imatrix) if imatrix else None
                quantize(library, work / "f32.gguf", theirs, recipe, importance)
                rdrr.convert(
                    options.checkpoint, stem, quantize=recipe, k_tail="ggml", imatrix=imatrix
                )
                rdrr.export(stem, ours, to="gguf")
                rows.append({"mix": recipe, "imatrix": bool(imatrix)} | compare(theirs, ours))
                theirs.unlink()
                ours.unlink()
    print(f"{'mix':8}{'imatrix':9}{'tensors':>8}{'other type':>12}{'other bytes':>13}")
    for row in rows:
        print(
            f"{row['mix']:8}{'yes' if row['imatrix'] else 'no':9}{row['tensors']:>8}"
            f"{len(row['other_type']):>12}{len(row['other_bytes']):>13}"
        )
    print(json.dumps({"benchmark": "mixes", "model": options.checkpoint.name, "rows": rows}))


if __name__ == "__main__":
    main()
