"""What a page downloads before the weights stays small."""

from __future__ import annotations

import gzip

import pytest
import rdrr
from rdrr._web import page_files
from rdrr._web_targets import TARGETS
from support.commands import ROOT

RUNTIME, PROGRAM = 120 << 10, 60 << 10
"""Bytes compressed by gzip: of the runtime and the page together, and of a program."""

MODELS = ("gemma-3-1b-it-q4k-ehf16-af32", "lfm2-5-1-2b-instruct-q4k-ehf16-af32")


def test_the_runtime_and_the_page_are_small():
    files = {name: content for name, content in page_files().items() if name != "licenses.txt"}
    assert "rdrr.js" in files
    sizes = {name: len(gzip.compress(content, 9, mtime=0)) for name, content in files.items()}
    assert sum(sizes.values()) <= RUNTIME, sizes


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
def test_the_programs_of_a_model_of_1b_parameters_are_small(model, tmp_path):
    manifest = ROOT / "tests" / "data" / "manifests" / f"{model}.json"
    written = rdrr.web(manifest, tmp_path / "web")
    sizes = {program.targets: program.compressed for program in written.programs}
    assert max(sizes.values()) <= PROGRAM, sizes
    assert sorted(name for names in sizes for name in names) == sorted(TARGETS)
