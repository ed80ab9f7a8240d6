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
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return open_package(package.where)


def test_a_package_equals_itself_in_any_storage(tmp_path, tensors):
    plain = package(tmp_path, "plain", tensors)
    other = package(tmp_path, "other", tensors, transpose_weights=True, fuse_gate_up=True)
    comparison = compare_packages(plain, other, workers=2)
    assert comparison.is_same_model
    assert {tensor.verdict for tensor in comparison.tensors} == {SAME_BYTES}
    assert [field_.field for field_ in comparison.fields] == ["weightsTransposed"]
    wide = compare_packages(plain, package(tmp_path, "wide", tensors, quantize="f32"))
    assert wide.is_same_model
    assert {tensor.verdict for tensor in wide.tensors} == {SAME_BYTES, SAME_VALUES}


@pytest.mark.parametrize(
    "layout", ["row", "column", pytest.param("flat", marks=pytest.mark.thorough)]
)
def test_the_reported_error_is_that_of_the_values(tmp_path, tensors, layout):
    first = package(tmp_path, "first", tensors)
    second = package(tmp_path, "second", tensors, quantize="q8_0", q4k_layout=layout)
    comparison = compare_packages(first, second)
    assert not comparison.is_same_model
    for tensor in comparison.tensors:
        ours = first.dequantize(tensor.name).astype(np.float64)
        apart = np.abs(second.dequantize(tensor.name) - ours)
        assert tensor.verdict == (SAME_BYTES if "norm" in tensor.name else DIFFERENT)
        if "norm" in tensor.name:
            assert not apart.any()
            continue
        assert tensor.relative_rmse == pytest.approx(np.sqrt((apart**2).sum() / (ours**2).sum()))
        assert tensor.largest == apart.max()
        assert tensor.where == np.unravel_index(apart.argmax(), apart.shape)


def test_a_changed_value_is_found_with_its_position(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    values = from_stored(tensors[UP]).copy()
    values[7, 11] += 0.5
    second = package(tmp_path, "second", {**tensors, UP: to_stored(values, "F16")})
    comparison = compare_packages(first, second)
    changed = [tensor for tensor in comparison.tensors if tensor.verdict != SAME_BYTES]
    assert [(one.name, one.where) for one in changed] == [(UP, (7, 11))]
    assert not comparison.is_same_model
    assert compare_packages(first, first).is_same_model


def test_names_and_shapes_that_differ_are_reported(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    more = {"intermediate_size": 544}
    second = package(
        tmp_path, "second", llama_tensors(np.random.default_rng(1), **more), config=more
    )
    comparison = compare_packages(first, second)
    assert {
        tensor.name.split(".")[-2] for tensor in comparison.tensors if tensor.verdict == SHAPE
    } == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert [field_.field for field_ in comparison.fields] == ["architecture.intermediateSize"]
    tensors = {name: values for name, values in tensors.items() if "layers.1." not in name}
    third = package(tmp_path, "third", tensors, config={"num_hidden_layers": 1})
    comparison = compare_packages(first, third)
    assert len(comparison.only_first) == 9
    assert comparison.only_second == ()
    assert compare_packages(third, first).only_second == comparison.only_first


def test_a_tied_head_is_compared_with_a_separate_one(tmp_path, tensors):
    untied = package(tmp_path, "own", {**tensors, HEAD: tensors["model.embed_tokens.weight"]})
    without = {name: values for name, values in tensors.items() if name != HEAD}
    tied = package(tmp_path, "tied", without, config={"tie_word_embeddings": True})
    comparison = compare_packages(untied, tied)
    assert comparison.is_same_model
    assert HEAD in [tensor.name for tensor in comparison.tensors]
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
    comparison = compare_packages(plain, other)
    assert comparison.is_same_model == exact
    verdict = next(tensor.verdict for tensor in comparison.tensors if tensor.name == NORM)
    assert verdict in ((SAME_VALUES, DIFFERENT) if not exact else (SAME_VALUES,))


def test_fields_of_the_model_count_and_kernel_hints_do_not(tmp_path, tensors):
    first = package(tmp_path, "first", tensors)
    second = edit(
        package(tmp_path, "second", tensors),
        lambda data: data["optimizations"]["kernelHints"].update(q4kMatmul="dequant_f16"),
    )
    comparison = compare_packages(first, second)
    assert comparison.is_same_model
    assert comparison.fields[0].field == "optimizations.kernelHints.q4kMatmul"
    third = edit(second, lambda data: data["inference"]["rope"].update(ropeTheta=5e5))
    comparison = compare_packages(first, third)
    assert not comparison.is_same_model
    assert ("inference.rope.ropeTheta", 10000.0, 5e5) in [
        (field_.field, field_.first, field_.second) for field_ in comparison.fields
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
    assert {tensor["verdict"] for tensor in output["tensors"]} == {DIFFERENT, SAME_BYTES}
    done = rdrr("diff", first, first)
    assert (done.code, "the same model" in done.out, UP in done.out) == (0, True, False)
    missing = rdrr("diff", first, tmp_path / "nowhere")
    assert "no such path" in error_line(missing, 1)


@pytest.mark.cover
@pytest.mark.parametrize("layout", ["row", "column", "flat"])
@pytest.mark.parametrize("fused", [False, True])
def test_equal_blocks_are_the_same_bytes_in_every_layout(tmp_path, tensors, layout, fused):
    options = {"quantize": "q8_0", "q4k_layout": layout, "fuse_gate_up": fused}
    first, second = (package(tmp_path, name, tensors, **options) for name in ("first", "second"))
    comparison = compare_packages(first, second)
    assert {tensor.verdict for tensor in comparison.tensors} == {SAME_BYTES}
    tensors[UP][3, 5] += 1
    third = compare_packages(first, package(tmp_path, "third", tensors, **options))
    assert [tensor.name for tensor in third.tensors if tensor.verdict == DIFFERENT] == [UP]
