"""Programs as data: what they state, how they are read, and which files are refused."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import partial
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import pytest
from rdrr_device.capabilities import DEFAULT_LANGUAGE, Capabilities
from rdrr_format.errors import FormatError, StoreError
from rdrr_manifests.package import open_package
from rdrr_runtime.compile.choice.hints import Policy
from rdrr_runtime.exec.plan import dry_run_plan
from rdrr_runtime.program.affine import joined
from rdrr_runtime.program.amounts import Growing
from rdrr_runtime.program.export import make_program
from rdrr_runtime.program.files import at_context, program_bytes, program_schema, read_program
from rdrr_runtime.program.pool import read_shader, write_shaders
from rdrr_runtime.program.schema import VERSION
from support.hints import policy
from support.lowered import empty_package
from support.manifests import write_manifest
from support.packages import llama_manifest
from support.program_models import (
    EXPERTS,
    MOST,
    embedding_manifest,
    padded_manifest,
    windowed_manifest,
)

SAMPLES = (2048, 2304, 6144, 8192)
MANIFESTS = Path(__file__).parents[2] / "data" / "manifests"
FAMILIES = ("gemma-3-270m-it", "lfm2-5-1-2b-instruct", "qwen-3-embedding-0-6b")
GPU = Capabilities(features=frozenset({"subgroup", "shader-f16"}))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program") / "package"
    return empty_package(folder, llama_manifest("Q8_0"))


@pytest.fixture(scope="module")
def program(package):
    return make_program(package, Capabilities(software=True), Policy(), most_context=MOST)


@pytest.fixture(scope="module")
def content(program):
    return json.loads(program_bytes(program))


def test_a_program_is_the_same_after_writing_and_reading(program):
    assert read_program(program_bytes(program)) == program


def test_the_schema_of_programs_describes_every_field():
    schema = program_schema()
    assert schema["title"] == f"RDRR program, version {VERSION}"
    blocks = [schema, *schema["$defs"].values()]
    fields = [field for block in blocks for field in block["properties"].items()]
    assert [name for name, field in fields if "description" not in field and name != "kind"] == []


def test_a_program_is_planned_without_a_device(package):
    program = make_program(package, GPU, Policy(), most_context=MOST)
    assert program.needs.features == ("subgroups",)
    assert program.needs.language == ("packed_4x8_integer_dot_product",)
    using = [text for text in program.shaders.values() if "subgroupAdd(" in text]
    assert using
    assert all(text.startswith("enable subgroups;\n") for text in using)


@pytest.mark.parametrize("moe", [None, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("language", [DEFAULT_LANGUAGE, frozenset()], ids=["usual", "none"])
def test_a_program_asks_for_no_language_feature_that_the_device_lacks(tmp_path, moe, language):
    package = empty_package(tmp_path / "package", llama_manifest("Q4_K", moe=moe))
    device = Capabilities(features=GPU.features, language=language)
    hints = policy(q4kMatmul="fused_q4k_int8")
    for chosen in (Policy(), hints):
        program = make_program(package, device, chosen, most_context=512)
        assert program.needs.language == tuple(language)
    plan = dry_run_plan(package, device, hints, 512, "f16")
    unmet = [decision.unmet.obstacle for decision in plan.decisions() if decision.unmet]
    assert bool(unmet) == (not language)
    assert all("int8 dot products" in obstacle for obstacle in unmet)


def test_shaders_have_no_comments_and_the_names_of_their_hashes(program):
    for name, text in program.shaders.items():
        assert sha256(text.encode()).hexdigest() == name
        assert "//" not in text


def test_the_kernels_of_several_passes_share_shaders(program):
    assert len(program.shaders) < len(program.kernels)


def test_the_programs_of_two_families_share_half_of_their_shaders():
    shaders = []
    for family in FAMILIES:
        package = open_package(MANIFESTS / f"{family}-q4k-ehf16-af32.json", bare=True)
        program = make_program(package, GPU, Policy(), most_context=2048)
        shaders.append(set(program.shaders))
    for some, others in combinations(shaders, 2):
        assert 2 * len(some & others) >= max(len(some), len(others))


def test_a_pool_gives_the_shaders_that_a_file_leaves_out(program, tmp_path):
    assert write_shaders(tmp_path, program.shaders) == len(program.shaders)
    assert write_shaders(tmp_path, program.shaders) == 0
    file = program_bytes(program, apart=True)
    assert json.loads(file)["shaders"] == {}
    assert read_program(file, "file.json", partial(read_shader, tmp_path)) == program
    with pytest.raises(FormatError, match=r"file\.json: .*lacks a shader.*pool"):
        read_program(file, "file.json")


def test_a_damaged_shader_of_a_pool_is_refused_and_written_again(program, tmp_path):
    write_shaders(tmp_path, program.shaders)
    read = partial(read_program, program_bytes(program, apart=True), "program")
    name = min(program.shaders)
    damages = [(b"fn main() {}", FormatError), (b"\xff", FormatError), (None, StoreError)]
    for damage, error in damages:
        path = tmp_path / f"{name}.wgsl"
        path.unlink() if damage is None else path.write_bytes(damage)
        with pytest.raises(error, match=name):
            read(partial(read_shader, tmp_path))
        assert write_shaders(tmp_path, program.shaders) == 1
        assert read(partial(read_shader, tmp_path)) == program


def test_only_caches_ropes_and_partial_results_grow_with_the_context(program):
    small, large = at_context(program, 2048), at_context(program, MOST)
    grown = {
        before.role
        for before, after in zip(small.buffers, large.buffers, strict=True)
        if before.size != after.size
    }
    assert {"kv", "rope"} <= grown <= {"kv", "rope", "value"}
    assert [listed.name for listed in small.passes] == ["decode", "prefill"]
    assert small.load[1:] == large.load[1:]


def test_padding_with_zeros_is_stated_in_load_steps(tmp_path):
    package = empty_package(tmp_path / "package", padded_manifest())
    program = make_program(package, Capabilities(software=True), Policy(), most_context=2048)
    norms = [part for step in program.load if step.kind == "vector" for part in step.parts]
    assert {part.shape for part in norms} == {(384,)}
    assert all(part.scale is not None for part in norms)
    columns = {step.decoded.columns for step in program.load if step.kind == "rows"}
    assert columns == {256, 384, 512}


def test_a_short_model_gets_a_program_for_its_own_context(package):
    program = make_program(package, Capabilities(), Policy())
    assert (program.contexts.least, program.contexts.most) == (512, 512)
    assert "growth" not in program_bytes(program).decode()


def test_the_contexts_of_a_program_hold_its_sliding_window(tmp_path):
    manifest = windowed_manifest()
    manifest["inference"]["attention"]["slidingWindow"] = 3000
    package = empty_package(tmp_path / "package", manifest)
    program = make_program(package, Capabilities(), Policy(), most_context=8192)
    assert program.contexts.least == 3072


def test_a_rope_that_changes_with_the_context_is_refused(tmp_path):
    manifest = llama_manifest("Q8_0")
    factors = {
        "longropeShortFactor": [1.0 + index / 64 for index in range(32)],
        "longropeLongFactor": [3.0 + index / 64 for index in range(32)],
    }
    manifest["inference"]["rope"] |= {
        **factors,
        "ropeScalingType": "longrope",
        "ropeScalingFactor": 4.0,
        "longropeOriginalMaxPos": 3072,
    }
    folder = tmp_path / "package"
    empty_package(folder, manifest)
    write_manifest(folder, manifest)
    changing = open_package(folder)
    with pytest.raises(FormatError, match=r"cannot have one program.*smaller range"):
        make_program(changing, Capabilities(), Policy(), most_context=MOST)
    program = make_program(changing, Capabilities(), Policy(), most_context=2816)
    assert program.contexts.most == 2816


def test_numbers_are_joined_if_they_are_affine_up_to_a_largest_value():
    values = {c: {"a": 3 * c, "b": min(c // 256, 20), "c": "x"} for c in SAMPLES}
    whole = joined(list(values.items()), 256)
    assert whole["c"] == "x"
    assert whole["a"] == {"value": 0, "growth": 768}
    assert whole["b"] == {"value": 0, "growth": 1, "most": 20}
    for name in ("a", "b"):
        growing = Growing.model_validate(whole[name])
        assert [growing.at(c // 256) for c in SAMPLES] == [values[c][name] for c in SAMPLES]


@pytest.mark.parametrize(
    "value",
    [lambda c: c * c, str, lambda c: [0] * c, lambda c: c // 1024, lambda c: 0.1 * c],
    ids=["a square", "a text", "a list", "steps", "a fraction"],
)
def test_other_values_that_change_with_the_context_are_refused(value):
    with pytest.raises(FormatError, match=r"program\.load\.0"):
        joined([(context, {"load": [value(context)]}) for context in SAMPLES], 256)


def damaged(content, path, value):
    """Return a program with another value at a path."""
    changed = deepcopy(content)
    *parents, last = path
    place = changed
    for key in parents:
        place = place[key]
    if last is None:
        place.append(value)
    else:
        place[last] = value
    return json.dumps(changed).encode()


def place_of(content, kind):
    return next(index for index, step in enumerate(content["load"]) if step["kind"] == kind)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("passes", 0, "body", 0, "kernel"), 9999),
        (("passes", 0, "body", 0, "kernel"), -1),
        (("passes", 0, "body", 0, "kernel"), "0"),
        (("passes", 0, "body", 0, "ranges", 0), 9999),
        (("passes", 0, "body", 0, "ranges", None), 0),
        (("passes", 0, "body", 0, "work"), {"items": 2**40}),
        (("passes", 0, "body", 0, "work"), {"items": 0}),
        (("passes", 0, "rows"), 2),
        (("passes", 1, "rows"), 10**6),
        (("passes", 0, "name"), "other"),
        (("ranges", 0, "buffer"), 9999),
        (("ranges", 0, "offset"), 4),
        (("ranges", 0, "size"), 2**40),
        (("ranges", 0, "size"), 0),
        (("buffers", 0, "size"), 6),
        (("buffers", 0, "size"), {"value": 0, "growth": -1}),
        (("buffers", 0, "role"), "secret"),
        (("kernels", 0, "shader"), "0" * 64),
        (("kernels", 0, "shader"), "../secret"),
        (("kernels", 0, "bindings", 0, "access"), "uniform"),
        (("shaders", "0" * 64), "fn main() {}"),
        (("step",), 9999),
        (("ring",), 9999),
        (("vocabulary",), 10**8),
        (("sampler", "counts"), 9999),
        (("sampler", "logprobs", "records"), 9999),
        (("sampler", "logprobs", "top"), 21),
        (("sampler", "logprobs", "phases", 0, "kernel"), 9999),
        (("sampler",), None),
        (("passes",), []),
        (("sampler", "samplings", None), {"top_k": True, "top_p": True, "phases": []}),
        (("records", "step_row", "fields"), {"token": "u32"}),
        (("records", "other"), {"fields": {}, "words": 1}),
        (("contexts", "least"), 4096 + 256),
        (("contexts", "multiple"), 0),
        (("contexts", "least"), 2049),
        (("unknown",), 1),
        (("format",), "something"),
        (("model",), None),
    ],
)
def test_a_program_that_contradicts_itself_is_refused(content, path, value):
    assert read_program(json.dumps(content).encode())
    with pytest.raises(FormatError):
        read_program(damaged(content, path, value))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("rope", ("range",), 9999),
        ("rope", ("frequencies", None), 1.0),
        ("constant", ("words", None), 2**32),
        ("vector", ("parts", 0, "shape"), [10**9]),
        ("rows", ("stride",), 2),
        ("rows", ("rows",), 10**9),
        ("rows", ("row_bytes",), 10**9),
        ("rows", ("parts", 0, "rows"), 10**9),
        ("repack", ("chunks", 0, "first"), 10**9),
        ("repack", ("chunks", 0, "writes", 0, "kernel"), 0),
        ("repack", ("chunks", 0, "writes", 0, "kernel"), 9999),
        ("repack", ("chunks", 0, "writes", 0, "planes"), 9999),
        ("repack", ("chunks", 0, "writes", 0, "target"), []),
        ("repack", ("kind",), "other"),
    ],
)
def test_a_load_step_that_contradicts_the_program_is_refused(content, kind, path, value):
    with pytest.raises(FormatError):
        read_program(damaged(content, ("load", place_of(content, kind), *path), value))


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedding") / "package"
    package = empty_package(folder, embedding_manifest(causal=False))
    program = make_program(package, Capabilities(software=True), Policy(), most_context=300)
    return json.loads(program_bytes(program))


def test_a_model_that_generates_no_text_has_its_hidden_states_alone(embedding):
    program = read_program(json.dumps(embedding).encode())
    assert (program.contexts.least, program.contexts.most) == (300, 300)
    assert (program.passes, program.sampler) == ((), None)
    assert (program.hidden.rows, program.hidden.width, program.hidden.stride) == (2048, 382, 1536)
    assert "model.norm.weight" in json.dumps(embedding["load"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hidden",), None),
        (("hidden", "rows"), 10**6),
        (("hidden", "stride"), 1524),
        (("hidden", "stride"), 2048),
        (("hidden", "result"), 9999),
        (("hidden", "dtype"), "F64"),
        (("hidden", "phases", 0, "kernel"), 9999),
        (("passes",), [{"name": "decode", "rows": 1, "body": [], "head": [], "sample": []}]),
    ],
)
def test_hidden_states_that_contradict_the_program_are_refused(embedding, path, value):
    with pytest.raises(FormatError):
        read_program(damaged(embedding, path, value))


def test_a_number_is_known_by_its_place_and_not_by_its_keys(content):
    limits = {"growth": 1, "value": 2}
    program = read_program(damaged(content, ("needs", "limits"), limits))
    assert at_context(program, 2048).needs.limits == limits


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_program_of_another_version_is_refused(content, version):
    with pytest.raises(FormatError, match=f"another version.*version {VERSION}.*{version}"):
        read_program(damaged(content, ("version",), version))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"{", b"\xff", b"[" * 100_000, b"nul"])
def test_what_is_no_program_is_refused(text):
    with pytest.raises(FormatError):
        read_program(text, "file.json")
