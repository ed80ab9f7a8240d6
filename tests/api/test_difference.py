"""Packages are compared by their values, not by their storage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr.difference import DIFFERENT, SAME_BYTES, SAME_VALUES, SHAPE, compare_packages
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from support.commands import error_line, rdrr
from support.safetensor_files import from_stored, llama_tensors, to_stored, write_llama

UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
HEAD = "lm_head.weight"


@pytest.fixture
def tensors(rng):
    return llama_tensors(rng, "F16")


def package(tmp_path, name, tensors, *, config=None, **options):
    folder = write_llama(tmp_path / f"{name}-source", tensors, **(config or {}))
    convert(folder, tmp_path / name, model_id="one", **{"quantize": "f16", **options})
    return open_package(tmp_path / name)


def edit(package, change):
    """Open the package again after a change of its manifest."""
    path = package.store.path("manifest.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return open_package(package.where)


def test_a_package_equals_itself_in_any_storage(tmp_path, tensors):
    plain = package(tmp_path, "plain", tensors)
    other = package(tmp_path, "other", tensors, transpose_weights=True, fuse_gate_up=True)
    found = compare_packages(plain, other, workers=2)
    assert found.is_same_model
    assert {one.verdict for one in found.tensors} == {SAME_BYTES}
    assert [one.field for one in found.fields] == ["weightsTransposed"]
    wide = compare_packages(plain, package(tmp_path, "wide", tensors, quantize="f32"))
    assert wide.is_same_model
    assert {one.verdict for one in wide.tensors} == {SAME_BYTES, SAME_VALUES}


@pytest.mark.parametrize("layout", ["row", "column", "flat"])
def test_the_reported_error_is_that_of_the_values(tmp_path, tensors, layout):
    first = package(tmp_path, "first", tensors)
    second = package(tmp_path, "second", tensors, quantize="q8_0", q4k_layout=layout)
    found = compare_packages(first, second)
    assert not found.is_same_model
    for one in found.tensors:
        ours = first.dequantize(one.name).astype(np.float64)
        apart = np.abs(second.dequantize(one.name) - ours)
        assert one.verdict == (SAME_BYTES if "norm" in one.name else DIFFERENT)
        if "norm" in one.name:
            assert not apart.any()
            continue
        assert one.relative_rmse == pytest.approx(np.sqrt((apart**2).sum() / (ours**2).sum()))
        assert one.largest == apart.max()
        assert one.where == np.unravel_index(apart.argmax(), apart.shape)


def test_a_changed_value_is_found_with_its_position(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    values = from_stored(tensors[UP]).copy()
    values[7, 11] += 0.5
    second = package(tmp_path, "second", {**tensors, UP: to_stored(values, "F16")})
    found = compare_packages(first, second)
    changed = [one for one in found.tensors if one.verdict != SAME_BYTES]
    assert [(one.name, one.where) for one in changed] == [(UP, (7, 11))]
    assert not found.is_same_model
    assert compare_packages(first, first).is_same_model


def test_names_and_shapes_that_differ_are_reported(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    more = {"intermediate_size": 544}
    second = package(
        tmp_path, "second", llama_tensors(np.random.default_rng(1), **more), config=more
    )
    found = compare_packages(first, second)
    assert {one.name.split(".")[-2] for one in found.tensors if one.verdict == SHAPE} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert [one.field for one in found.fields] == ["architecture.intermediateSize"]
    tensors = {name: values for name, values in tensors.items() if "layers.1." not in name}
    third = package(tmp_path, "third", tensors, config={"num_hidden_layers": 1})
    found = compare_packages(first, third)
    assert len(found.only_first) == 9
    assert found.only_second == ()
    assert compare_packages(third, first).only_second == found.only_first


def test_a_tied_head_is_compared_with_a_separate_one(tmp_path, tensors):
    own = package(tmp_path, "own", {**tensors, HEAD: tensors["model.embed_tokens.weight"]})
    without = {name: values for name, values in tensors.items() if name != HEAD}
    tied = package(tmp_path, "tied", without, config={"tie_word_embeddings": True})
    found = compare_packages(own, tied)
    assert found.is_same_model
    assert HEAD in [one.name for one in found.tensors]
    assert not compare_packages(package(tmp_path, "other", tensors), tied).is_same_model


@pytest.mark.parametrize("exact", [True, False])
def test_norms_with_1_added_are_the_same_norms(tmp_path, tensors, exact):
    # Multiples of 1/1024, so that taking 1 off and adding it rounds nothing.
    tensors = {
        name: to_stored(np.round(1024 * from_stored(values)) / np.float32(1024), "F32")
        if "norm" in name
        else values
        for name, values in tensors.items()
    }
    plain = package(tmp_path, "plain", tensors)
    norms = {
        name: to_stored(from_stored(values) - np.float32(exact), "F32")
        for name, values in tensors.items()
        if "norm" in name
    }
    other = edit(
        package(tmp_path, "other", {**tensors, **norms}),
        lambda data: data["inference"]["normalization"].update(rmsNormWeightOffset=True),
    )
    found = compare_packages(plain, other)
    assert found.is_same_model == exact
    verdict = next(one.verdict for one in found.tensors if one.name == NORM)
    assert verdict in ((SAME_VALUES, DIFFERENT) if not exact else (SAME_VALUES,))


def test_fields_of_the_model_count_and_kernel_hints_do_not(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    second = edit(
        package(tmp_path, "second", tensors),
        lambda data: data["optimizations"]["kernelHints"].update(q4kMatmul="dequant_f16"),
    )
    found = compare_packages(first, second)
    assert found.is_same_model
    assert found.fields[0].field == "optimizations.kernelHints.q4kMatmul"
    third = edit(second, lambda data: data["inference"]["rope"].update(ropeTheta=5e5))
    found = compare_packages(first, third)
    assert not found.is_same_model
    assert ("inference.rope.ropeTheta", 10000.0, 5e5) in [
        (one.field, one.first, one.second) for one in found.fields
    ]


def test_the_command_gives_the_verdict_as_exit_code_and_json(tmp_path, tensors):
    first = package(tmp_path, "first", tensors).where
    second = package(tmp_path, "second", tensors, quantize="q8_0").where
    done = rdrr("diff", first, second)
    assert done.code == 1
    assert "not the same model" in done.out
    assert UP in done.out
    output = rdrr("diff", first, second, "--json").json()
    assert output["same"] is False
    assert {one["verdict"] for one in output["tensors"]} == {DIFFERENT, SAME_BYTES}
    done = rdrr("diff", first, first)
    assert (done.code, "the same model" in done.out, UP in done.out) == (0, True, False)
    missing = rdrr("diff", first, tmp_path / "nowhere")
    assert missing.code == 1
    assert "no such path" in error_line(missing)


@pytest.mark.parametrize("layout", ["row", "column", "flat"])
@pytest.mark.parametrize("fused", [False, True])
def test_equal_blocks_are_the_same_bytes_in_every_layout(tmp_path, tensors, layout, fused):
    options = {"quantize": "q8_0", "q4k_layout": layout, "fuse_gate_up": fused}
    first, second = (package(tmp_path, name, tensors, **options) for name in ("first", "second"))
    found = compare_packages(first, second)
    assert {one.verdict for one in found.tensors} == {SAME_BYTES}
    tensors[UP][3, 5] += 1
    third = compare_packages(first, package(tmp_path, "third", tensors, **options))
    assert [one.name for one in third.tensors if one.verdict == DIFFERENT] == [UP]
