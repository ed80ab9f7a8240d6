"""Programs as data: a small one with a load step of each kind, and hostile ones."""

from __future__ import annotations

import json
from hashlib import sha256

from fuzz.json_edits import VALUES, base
from fuzz.text_files import edited_text
from hypothesis import strategies as st
from rdrr_runtime.records import RECORDS

SHADER = "@compute @workgroup_size(1) fn main() {}\n"
_NAME = sha256(SHADER.encode()).hexdigest()
_PHASE = {"kernel": 0, "ranges": [0], "work": {"items": 3, "per": 1, "most_rows": 1, "up_to": 8}}


def _kernel(*names: str) -> dict[str, object]:
    bindings = [{"name": name, "access": "storage"} for name in names]
    constants = {"WG": 1, "SPLITS": {"value": 0, "growth": 1, "most": 9}}
    return {
        "label": "kernel",
        "shader": _NAME,
        "entry": "main",
        "constants": constants,
        "bindings": bindings,
    }


def _pass(name: str, rows: int) -> dict[str, object]:
    return {"name": name, "rows": rows, "body": [_PHASE], "head": [_PHASE], "sample": [_PHASE]}


_WRITE = {"kernel": 1, "planes": 0, "target": [1, 2], "items": 4}
_SAMPLINGS = [
    {"top_k": top_k, "top_p": top_p, "phases": [_PHASE]}
    for top_k in (False, True)
    for top_p in (False, True)
]
PROGRAM = {
    "format": "rdrr-program",
    "version": 1,
    "model": "m",
    "vocabulary": 8,
    "ends": [2],
    "kv_dtype": "f16",
    "contexts": {"least": 2048, "most": 4096, "multiple": 256},
    "needs": {"features": ["subgroups"], "language": [], "limits": {"max-buffer-size": 1}},
    "records": {
        name: {"fields": dict(table.fields), "words": table.words}
        for name, table in RECORDS.items()
    },
    "shaders": {_NAME: SHADER},
    "kernels": [_kernel("x"), _kernel("blocks", "planes", "chunk")],
    "buffers": [{"size": {"value": 65536, "growth": 2048}, "role": "value"}],
    "ranges": [{"buffer": 0, "offset": 256, "size": 65280}],
    "step": 0,
    "ring": 0,
    "load": [
        {"kind": "constant", "range": 0, "words": [1, 2]},
        {"kind": "rope", "range": 0, "frequencies": [0.5], "factor": 1.5},
        {
            "kind": "vector",
            "range": 0,
            "parts": [
                {
                    "tensor": "norm",
                    "dtype": "F32",
                    "shape": [8],
                    "scale": {"factor": 2.0, "offset": 1.0},
                }
            ],
        },
        {
            "kind": "rows",
            "tensor": "head",
            "dtype": "BF16",
            "decoded": {"dtype": "F16", "columns": 8},
            "rows": 4,
            "row_bytes": 16,
            "stride": 16,
            "parts": [{"range": 0, "first": 0, "rows": 4}],
        },
        {
            "kind": "repack",
            "tensor": "up",
            "dtype": "Q8_0",
            "rows": 4,
            "row_bytes": 34,
            "chunks": [{"first": 0, "rows": 4, "writes": [_WRITE]}],
        },
    ],
    "passes": [_pass("decode", 1), _pass("prefill", 8)],
    "sampler": {
        "params": 0,
        "counts": 0,
        "bias": 0,
        "mask": 0,
        "entries": 0,
        "most_entries": 4096,
        "scatter": _PHASE,
        "samplings": _SAMPLINGS,
    },
}
SOUND = (json.dumps(PROGRAM).encode(),)
CASES = edited_text(
    [base(PROGRAM)], VALUES | st.sampled_from([{"value": 0, "growth": -1}, {"growth": 1}, _PHASE])
)
