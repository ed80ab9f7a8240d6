"""Sizes that the host uses are those of the structures that shaders declare."""

from __future__ import annotations

import re
from math import prod

import pytest
from rdrr_runtime import records
from rdrr_runtime.phases import generation_state
from rdrr_runtime.phases.phase import FOLDER
from rdrr_runtime.phases.routes import ROUTE_WORDS
from rdrr_runtime.phases.sampling import sample_buffers
from rdrr_runtime.phases.sampling.fill_masks import RULES

SELECTION = "sampling/snippets/selection.wgsl"
ATOM = {"u32": 1, "f32": 1, "vec2<u32>": 2}


def constants(source: str) -> dict[str, int]:
    return {name: int(size) for name, size in re.findall(r"const (\w+) = (\d+)u;", source)}


def words(source: str, struct: str) -> int:
    """Return the words of a structure, without an array of any length at its end."""
    body = re.search(rf"struct {struct} {{(.*?)\n}}", source, re.DOTALL)
    types = re.findall(r"^\s*\w+: (.+?),(?:\s*//.*)?$", body[1], re.MULTILINE)
    return sum(words_of(source, kind) for kind in types)


def words_of(source: str, kind: str) -> int:
    array = re.fullmatch(r"array<(\w+(?:<\w+>)?)(?:, (.+))?>", kind)
    if array is None:
        atom = re.sub(r"atomic<(\w+)>", r"\1", kind)
        return ATOM[atom] if atom in ATOM else words(source, atom)
    stated, factors = constants(source), (array[2] or "0u").split(" * ")
    count = prod(stated.get(factor) or int(factor.removesuffix("u")) for factor in factors)
    return words_of(source, array[1]) * count


@pytest.mark.parametrize(
    ("snippet", "struct", "size"),
    [
        (SELECTION, "Selection", sample_buffers.SELECTION_WORDS),
        ("sampling/snippets/sampling_params.wgsl", "Params", sample_buffers.PARAM_WORDS),
        ("snippets/step.wgsl", "Row", generation_state.ROW_WORDS),
        ("snippets/step.wgsl", "Step", generation_state.HEADER_WORDS),
        ("snippets/segment.wgsl", "Segment", records.SEGMENT.words),
        ("snippets/route.wgsl", "Route", ROUTE_WORDS),
        ("sampling/scatter_entries.wgsl", "Entry", records.ENTRY.words),
        ("sampling/fill_masks.wgsl", "Rules", RULES.words),
    ],
)
def test_a_structure_has_the_words_that_the_host_reserves(snippet, struct, size):
    assert words(FOLDER.render(snippet, SUBGROUPS=False), struct) == size


def test_the_host_and_the_shaders_of_a_sampler_share_their_constants():
    stated = constants(FOLDER.render(SELECTION, SUBGROUPS=False))
    names = ("STAGES", "LEVELS", "BINS", "MAX_GROUPS")
    assert {name: stated[name] for name in names} == {
        name: getattr(sample_buffers, name) for name in names
    }


def test_the_words_of_a_structure_follow_its_declaration():
    members = "    x: array<atomic<u32>, 2u * N>,\n    y: vec2<u32>,  // why\n"
    assert words(f"const N = 3u;\nstruct A {{\n{members}}}", "A") == 8
