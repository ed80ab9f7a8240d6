"""What the browser runtime has from Python: types of a program, and the records of its tests."""

from __future__ import annotations

import base64
import json
import runpy

import numpy as np
from rdrr_format.dtypes import parse_dtype
from rdrr_format.encoding import decode_tensor
from rdrr_format.layouts import geometry, parse_layout
from rdrr_runtime.records import RECORDS
from support.commands import ROOT
from support.packages import random_bytes

WEB = ROOT / "web"


def test_the_types_of_a_program_are_those_of_its_schema():
    types = runpy.run_path(str(WEB / "generate_types.py"))["types"]()
    committed = (WEB / "src" / "program" / "schema.ts").read_text(encoding="utf-8")
    assert committed == types, "run python web/generate_types.py > web/src/program/schema.ts"


def test_the_records_that_the_tests_in_node_pack_are_ours():
    stated = json.loads((WEB / "test" / "data" / "records.json").read_text(encoding="utf-8"))
    assert stated == {
        "records": {
            name: {"fields": dict(table.fields), "words": table.words}
            for name, table in RECORDS.items()
        }
    }


DECODED = [(dtype, layout) for dtype in ("Q4_K_M", "Q6_K", "Q8_0") for layout in ("row", "column")]


def decoded_vectors():
    """Return random blocks of each type that browsers decode, and their values."""
    rng, shape = np.random.default_rng(33), (2, 40)
    vectors = []
    for dtype, layout in DECODED:
        entry = {"dtype": dtype, "layout": layout, "shape": list(shape)}
        stored = geometry(parse_dtype(dtype), shape, parse_layout(layout))
        raw = random_bytes(entry | {"size": stored.size}, rng)
        values = decode_tensor(raw, parse_dtype(dtype), shape, parse_layout(layout))
        texts = {"stored": _base64(raw), "values": _base64(np.ascontiguousarray(values))}
        vectors.append(entry | texts)
    return vectors


def _base64(array):
    return base64.b64encode(array.tobytes()).decode()


def test_the_blocks_that_the_tests_in_node_decode_have_our_values():
    stated = json.loads((WEB / "test" / "data" / "blocks.json").read_text(encoding="utf-8"))
    assert stated == decoded_vectors()


def test_the_package_of_npm_has_the_version_of_rdrr():
    import rdrr

    for name in ("package.json", "package-lock.json"):
        stated = json.loads((WEB / name).read_text(encoding="utf-8"))
        assert stated["version"] == rdrr.__version__
