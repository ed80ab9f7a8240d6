"""Shaders of several phases share a module without disturbing each other."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest
from rdrr_device.arena import arena
from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_device.shaders import storage_bindings, with_binding_numbers
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.exec.persistent.declarations import (
    Names,
    UnlinkableError,
    declarations,
)
from rdrr_runtime.exec.persistent.elements import (
    CastElement,
    HandedElement,
    StoredElement,
    is_changed_in_place,
)
from rdrr_runtime.exec.persistent.handover import SWIZZLED, Slots
from rdrr_runtime.exec.persistent.linking import link
from rdrr_runtime.exec.persistent.renaming import Renaming
from rdrr_runtime.exec.persistent.schedule import shared_buffers, waits
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.context import Grid
from support.dawn_device import open_dawn_device, why_no_dawn
from support.fake_phases import fake_phase
from support.lowered import WITH_MATRICES
from support.packages import llama_manifest, write_random_package

GRID = Grid(256, 132)

SHADER = """// a comment with var<storage, read> fake: array<u32>;
enable f16;
alias Pair = vec2<f32>;
struct Entry {
    value: f32,
    index: u32,
}
struct Local {
    sums: Pair,
}
override K: u32;
override HALF = K / 2u;
var<storage, read> x: array<Pair>;
var<storage, read_write> best: array<Entry>;
var<workgroup> partial: array<vec4<f32>, (HALF + 1u) * 2u>;
fn helper(i: u32) -> f32 {
    var mine = Local(x[x_index(i) + x_index(x_index(1u))]);
    return mine.sums.x + f32(HALF);
}
fn x_index(i: u32) -> u32 { return i % K; }
"""


def _names(**constants):
    return Names(declarations(SHADER), {"K": 64, **constants})


def _renaming():
    renaming = Renaming(3, declarations(SHADER), _names())
    renaming.reads = {
        "x": StoredElement("buffer_0", "at_3_0"),
        "best": StoredElement("buffer_1", "at_3_1"),
        "partial": StoredElement("pool"),
    }
    return renaming


def _text(name):
    renaming = _renaming()
    return renaming.text(
        next(declaration for declaration in renaming.declared if declaration.name == name)
    )


def test_declarations_are_read_without_comments_and_directives():
    kinds = {declaration.name: declaration.kind for declaration in declarations(SHADER)}
    assert kinds == {
        "Pair": "alias",
        "Entry": "struct",
        "Local": "struct",
        "K": "override",
        "HALF": "override",
        "x": "storage",
        "best": "storage",
        "partial": "workgroup",
        "helper": "fn",
        "x_index": "fn",
    }


def test_sizes_follow_from_constants_and_aliases():
    names = _names()
    array = names.array("array<vec4<f32>, (HALF + 1u) * 2u>")
    assert (array.element, names.evaluate(array.count)) == ("vec4<f32>", 66)
    sizes = [names.size_of(kind) for kind in ("Pair", "vec3<f32>", "vec4<f16>", "Entry", "f16")]
    assert sizes == [8, 16, 8, 8, 2]


@pytest.mark.parametrize("expression", ["K << 1u", "select(1u, 2u, true)", "UNKNOWN"])
def test_an_unknown_expression_is_refused(expression):
    with pytest.raises(UnlinkableError, match="cannot compute"):
        _names().evaluate(expression)


def test_only_structs_of_buffers_keep_their_names():
    assert [shared_struct.name for shared_struct in _renaming().shared_structs] == ["Entry"]
    assert _text("Local") == "struct Local_3 {\n\n    sums: Pair_3,\n}"


def test_overrides_become_constants():
    assert _text("K") == "const K_3: u32 = 64u;"
    assert _text("HALF") == "const HALF_3 = K_3 / 2u;"


def test_accesses_go_to_the_variables_of_the_module():
    index = "buffer_0[at_3_0 + (x_index_3(i) + x_index_3(x_index_3(1u)))]"
    assert index in _text("helper")
    assert "mine.sums.x" in _text("helper")


def test_floats_lie_over_words_as_bits():
    words = CastElement("shared_vec4_u32", "3u", "vec4<f32>", "vec4<u32>")
    assert words.read("i") == "bitcast<vec4<f32>>(shared_vec4_u32[3u + (i)])"
    assert words.write("i", "v") == "shared_vec4_u32[3u + (i)] = bitcast<vec4<u32>>(v)"


@pytest.mark.parametrize(
    ("statement", "changes"),
    [("sums[t] += 1.0;", True), ("sums[t].x = 1.0;", True), ("sums[t] = sums[t + 1u];", False)],
)
def test_elements_that_are_changed_in_place_are_recognized(statement, changes):
    declared = declarations(f"fn phase(t: u32) {{\n    {statement}\n}}")
    assert is_changed_in_place(declared, "sums") == changes


def test_an_array_can_be_read_and_written_in_different_places():
    source = """var<storage, read_write> x: array<f32>;
fn phase(item: u32) { x[item] = x[item] + 1.0; }
"""
    declared = declarations(source)
    renaming = Renaming(0, declared, Names(declared, {}))
    renaming.reads = {"x": StoredElement("buffer_0", "at_0_0")}
    renaming.writes = {"x": HandedElement("to_0_0", "f32")}
    assert "put1(to_0_0 + (item), bitcast<u32>(buffer_0[at_0_0 + (item)] + 1.0));" in renaming.text(
        declared[-1]
    )


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("fn f(x: f32) -> f32 { return x; }", "x is also a local name of f"),
        ("fn f() -> f32 { let x = 1.0; return x; }", "x is also a local name of f"),
        ("fn f() -> u32 { return arrayLength(&x); }", "x is used as a whole"),
    ],
)
def test_a_use_that_cannot_be_rewritten_is_refused(function, why):
    declared = declarations(f"{SHADER}{function}")
    renaming = Renaming(0, declared, Names(declared, {"K": 64}))
    renaming.reads = {"x": StoredElement("buffer_0", "at_0_0")}
    with pytest.raises(UnlinkableError, match=why):
        renaming.text(declared[-1])


A, B = object(), object()


def _phase(*touched):
    """Return a phase that touches ranges of buffers, each given with whether it writes there."""
    names = [f"b{index}" for index in range(len(touched))]
    declared = (
        f"{'write' if writes else 'read'} {name}: array<f32>"
        for name, (_, writes) in zip(names, touched, strict=True)
    )
    buffers = {name: memory for name, (memory, _) in zip(names, touched, strict=True)}
    return fake_phase("", *declared, **buffers)


def _range(buffer, offset, size, writes):
    return BufferSlice(buffer, offset, size), writes


def _in_memory(phases):
    return [Slots({}, {}, frozenset(phase.buffers)) for phase in phases]


def test_a_phase_waits_only_for_what_it_depends_on():
    first = _phase(_range(A, 0, 16, True))
    beside = _phase(_range(A, 16, 16, True), _range(B, 0, 16, False))
    reader = _phase(_range(A, 0, 4, False), _range(B, 0, 16, False))
    writer = _phase(_range(B, 8, 8, True))
    phases = [first, beside, reader, writer]
    assert waits(phases, _in_memory(phases)) == [False, False, True, True]
    assert waits([beside, reader], _in_memory([beside, reader])) == [False, False]


def test_a_phase_does_not_wait_for_what_is_handed_over():
    phases = [_phase(_range(A, 0, 16, True)), _phase(_range(A, 0, 16, False))]
    handed = [Slots({}, {"b0": 0}, frozenset()), Slots({"b0": 0}, {}, frozenset())]
    assert waits(phases, _in_memory(phases)) == [False, True]
    assert waits(phases, handed) == [False, False]
    assert shared_buffers(phases, _in_memory(phases)) == {id(A)}
    assert shared_buffers(phases, handed) == set()


def test_only_ranges_that_two_phases_touch_are_shared():
    writers = [_phase(_range(A, at, 16, True)) for at in (0, 16)]
    assert shared_buffers(writers, _in_memory(writers)) == set()
    both = [*writers, _phase(_range(A, 8, 16, False))]
    assert shared_buffers(both, _in_memory(both)) == {id(A)}


def test_phases_of_other_sizes_are_refused(bench):
    from rdrr_runtime.phases.rows.copy import copy

    phases = copy(bench.poisoned(64), bench.poisoned(64), label="copy")
    threads = phases[0].record.threads
    with pytest.raises(UnlinkableError, match=f"copy has {threads} threads"):
        link(phases, Grid(2 * threads, 1))
    assert phases[0].work == Work(phases[0].work.items)
    with pytest.raises(UnlinkableError, match="no phase reads the step"):
        link(phases, Grid(threads, 1))


def _decode_pass(device, folder, rng, layout):
    """Yield the decode pass of a model on a GPU."""
    package = write_random_package(folder, llama_manifest("Q4_K", layout, layers=2), rng)
    with arena(device, "gpu") as owner:
        owner.capabilities = replace(WITH_MATRICES, matrices=())
        plan = Plan(package, owner, Policy(), context=64, kv_dtype="f16", upload=False)
        yield plan.lower(DECODE, grid=GRID)


@pytest.fixture
def rows(device, tmp_path, rng):
    """The pass of a row-major model, all of whose values are handed over."""
    yield from _decode_pass(device, tmp_path, rng, "row")


@pytest.fixture
def columns(device, tmp_path, rng):
    """The pass of a column-major model, all of whose values are handed over as well."""
    yield from _decode_pass(device, tmp_path, rng, "column")


def _written(linked):
    """Return the buffers that a module writes, once for each declaration."""
    names = re.findall(r"var<storage, read_write> (\w+): ", linked.source)
    return [id(linked.buffers[name].buffer) for name in names if name in linked.buffers]


def test_a_module_without_aliases_declares_each_buffer_that_it_writes_once(rows):
    linked = link(rows.phases, GRID, results=(rows.logits,), aliased=False)
    assert len(set(_written(linked))) == len(_written(linked)) > 0
    words = "var<storage, read_write> words1: array<atomic<u32>>;"
    assert re.findall(r"var<storage, read_write> words\d.*", linked.source) == [words]
    aliased = link(rows.phases, GRID, results=(rows.logits,))
    assert len(re.findall(r"@coherent\nvar<storage, read_write> words\d", aliased.source)) == 3


def test_atomic_words_of_neighbouring_vectors_lie_side_by_side(rows):
    source = link(rows.phases, GRID, results=(rows.logits,), aliased=False).source
    body = re.search(r"fn place\(word: u32\) -> u32 {\s*return (.+);", source)[1]
    formula = re.sub(r"(\d)u", r"\1", body).replace("/", "//")
    places = [eval(formula, {"word": word}) for word in range(3 * SWIZZLED)]
    assert sorted(places) == list(range(3 * SWIZZLED))
    assert places[0] == 0  # the count of passes, which the host clears
    for first in (0, 3, SWIZZLED):
        vectors = places[first : first + SWIZZLED - first % SWIZZLED : 4]
        assert vectors == list(range(vectors[0], vectors[0] + SWIZZLED // 4))


def test_phases_of_one_row_run_once_if_there_are_enough_workgroups(rows):
    def without_loops(grid, most_rows=1):
        """Return how many units have no loop over a workgroup's calls."""
        source = link(rows.phases, grid, rows=most_rows, results=(rows.logits,)).source
        return source.count("if (group.x < calls) {")

    items = max(phase.work.items for phase in rows.phases if phase.work.rows is not None)
    assert without_loops(Grid(256, items)) == without_loops(GRID) > 0
    assert without_loops(Grid(256, items - 1)) < without_loops(GRID)
    assert without_loops(GRID, most_rows=2) == 0


def test_a_pass_that_leaves_values_in_memory_is_refused_without_aliases(bench):
    from rdrr_runtime.phases.rows.copy import copy

    x, between, y = (bench.poisoned(64) for _ in range(3))
    phases = [*copy(x, between, label="first"), *copy(between, y, label="second")]
    grid = Grid(phases[0].record.threads, 1)
    with pytest.raises(UnlinkableError, match="other workgroups need not see"):
        link(phases, grid, aliased=False)
    with pytest.raises(UnlinkableError, match="no phase reads the step"):
        link(phases, grid)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.skipif(why_no_dawn() is not None, reason="Dawn is not there")
def test_tint_accepts_a_module_without_aliases(layout, request):
    whole = request.getfixturevalue(layout)
    source = link(whole.phases, GRID, results=(whole.logits,), aliased=False).source
    bindings, numbered = storage_bindings(source), with_binding_numbers(source)
    kernel = Kernel("persistent", numbered, "main", (), bindings, trusted=True)
    with closing(open_dawn_device()) as dawn, arena(dawn, "any") as owner:
        buffers = tuple(owner.empty(binding.name, 1 << 16) for binding in bindings)
        dawn.bind(Dispatch(kernel, buffers, Work(1), "whole pass"))
