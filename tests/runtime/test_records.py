"""The records that the host writes have the words of the golden vectors and the shaders' fields.

`tests/data/vectors/records.json` is for every language that packs them: inputs, and the words.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rdrr_runtime.phases.phase import FOLDER
from rdrr_runtime.records import (
    RECORDS,
    entries_of,
    pack_entries,
    pack_params,
    pack_segments,
    pack_step,
)
from rdrr_runtime.sampling.params import SamplingParams

FILE = Path(__file__).parents[1] / "data" / "vectors" / "records.json"
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", VECTORS["step"])
def test_a_step_has_the_words_of_its_vector(case):
    words = case.pop("words")
    assert pack_step(**case).tolist() == words


@pytest.mark.parametrize("case", VECTORS["sampler"])
def test_the_parameters_of_a_sampler_have_the_words_of_their_vector(case):
    words = pack_params(SamplingParams(**case["options"]), int(case["seed"]), masked=case["masked"])
    assert words.tolist() == case["words"]


@pytest.mark.parametrize("case", VECTORS["entries"])
def test_sparse_lists_have_the_words_of_their_vector(case):
    options = dict(case["options"])
    options["logit_bias"] = {int(key): bias for key, bias in options.get("logit_bias", {}).items()}
    lists = pack_entries(entries_of(SamplingParams(**options), case["seen"]))
    assert [words.tolist() for words in lists] == case["words"]


def test_a_segment_is_repeated_for_each_row_of_its_text():
    words = pack_segments([0, 3], [3, 4], [0, 1, 1, 0]).reshape(4, 3)
    assert words.tolist() == [[0, 3, 0], [0, 3, 1], [0, 3, 1], [3, 4, 0]]


@pytest.mark.parametrize(
    ("name", "shader", "structure"),
    [
        ("step_header", "snippets/step.wgsl", "Step"),
        ("step_row", "snippets/step.wgsl", "Row"),
        ("sampler", "sampling/snippets/sampling_params.wgsl", "Params"),
        ("entries", "sampling/scatter_entries.wgsl", "Entries"),
        ("entry", "sampling/scatter_entries.wgsl", "Entry"),
        ("segment", "snippets/segment.wgsl", "Segment"),
    ],
)
def test_a_record_has_the_fields_that_the_shader_declares(name, shader, structure):
    records = RECORDS
    assert declared(FOLDER.render(shader), structure) == dict(records[name].fields)


def declared(source: str, structure: str) -> dict[str, str]:
    """Return the types of a structure's words, without padding and arrays of any length."""
    body = re.search(rf"struct {structure} {{(.*?)\n}}", source, re.DOTALL)
    fields = re.findall(r"^\s*(\w+): (u32|f32|vec2<u32>),", body[1], re.MULTILINE)
    words: dict[str, str] = {}
    for name, kind in fields:
        halves = {f"{name}_low": "u32", f"{name}_high": "u32"}
        words |= halves if kind == "vec2<u32>" else {name: kind}
    return {name: kind for name, kind in words.items() if not name.startswith("pad")}
