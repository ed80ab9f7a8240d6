"""What the browser runtime has from Python: the types of a program, and the records in its tests."""

from __future__ import annotations

import json
import runpy

from rdrr_runtime.records import RECORDS
from support.commands import ROOT

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


def test_the_package_of_npm_has_the_version_of_rdrr():
    import rdrr

    for name in ("package.json", "package-lock.json"):
        stated = json.loads((WEB / name).read_text(encoding="utf-8"))
        assert stated["version"] == rdrr.__version__
