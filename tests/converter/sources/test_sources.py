"""Checkpoints are read as they were written, and errors name what is damaged."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.checkpoint.source import SourceTensor, same_values
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.safetensor_files import (
    LLAMA_CONFIG,
    from_stored,
    llama_tensors,
    to_stored,
    write_llama,
    write_raw,
    write_safetensors,
)


def write_one(folder, rng, dtype="BF16", shape=(6, 10), name="w"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    stored = to_stored(rng.standard_normal(shape, np.float32), dtype)
    write_safetensors(folder / "model.safetensors", {name: stored})
    return stored


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_parts_of_a_tensor_are_the_written_values(tmp_path, rng, dtype):
    stored = write_one(tmp_path, rng, dtype)
    tensor = open_source(tmp_path).tensors["w"]
    values = from_stored(stored)
    assert tensor.dtype == dtype
    assert tensor.shape == (6, 10)
    np.testing.assert_array_equal(tensor.read(), values)
    np.testing.assert_array_equal(tensor.read(rows=slice(2, 5)), values[2:5])
    np.testing.assert_array_equal(tensor.read(columns=slice(3, 4)), values[:, 3:4])
    assert measure(tensor).largest == np.abs(values).max()


def test_blocks_that_decode_to_nan_are_found_without_a_warning(recwarn):
    for byte, is_finite in ((255, False), (0, True)):
        blocks = np.full((2, 144), byte, np.uint8)
        tensor = SourceTensor("w", (2, 256), "Q4_K", "file", lambda blocks=blocks: blocks)
        assert np.isfinite(measure(tensor).largest) == is_finite
    assert not recwarn.list


def test_a_vector_is_one_row(tmp_path, rng):
    stored = write_one(tmp_path, rng, shape=(7,))
    tensor = open_source(tmp_path).tensors["w"]
    assert (tensor.rows, tensor.columns) == (1, 7)
    np.testing.assert_array_equal(tensor.read(), from_stored(stored)[None])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_magnitude_is_not_finite_if_a_value_is_not(tmp_path, rng, dtype, value):
    values = rng.standard_normal((3, 5), np.float32)
    values[1, 2] = value
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    write_safetensors(tmp_path / "model.safetensors", {"w": to_stored(values, dtype)})
    assert not np.isfinite(measure(open_source(tmp_path).tensors["w"]).largest)
    values[1, 2] = -7.0
    write_safetensors(tmp_path / "model.safetensors", {"w": to_stored(values, dtype)})
    assert measure(open_source(tmp_path).tensors["w"]).largest == 7.0


def test_almost_equal_values_are_not_the_same(tmp_path, rng):
    stored = to_stored(rng.standard_normal((9, 4), np.float32), "BF16")
    other = stored.copy()
    other[-1, -1] ^= 1
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    write_safetensors(tmp_path / "model.safetensors", {"a": stored, "b": stored.copy(), "c": other})
    tensors = open_source(tmp_path).tensors
    assert same_values(tensors["a"], tensors["b"])
    assert not same_values(tensors["a"], tensors["c"])


def test_shards_hold_the_same_tensors_as_one_file(tmp_path, rng):
    tensors = llama_tensors(rng)
    single = open_source(write_llama(tmp_path / "one", tensors))
    three = open_source(write_llama(tmp_path / "three", tensors, shards=3))
    assert set(single.tensors) == set(three.tensors) == set(tensors)
    for name in tensors:
        np.testing.assert_array_equal(single.tensors[name].read(), three.tensors[name].read())


def test_a_single_file_is_read_with_the_configuration_beside_it(tmp_path, rng):
    folder = write_llama(tmp_path / "m", llama_tensors(rng))
    source = open_source(folder / "model.safetensors")
    assert source.path == folder
    assert source.config["hidden_size"] == LLAMA_CONFIG["hidden_size"]
    (folder / "config.json").unlink()
    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(folder / "model.safetensors")


def test_a_path_that_is_not_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no such checkpoint"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="not a checkpoint") as caught:
        open_source(tmp_path)
    assert caught.value.found is None
    (tmp_path / "text.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(SourceError, match="not a checkpoint"):
        open_source(tmp_path / "text.txt")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SourceError, match=r"model\.safetensors or") as caught:
        open_source(tmp_path)
    assert caught.value.found == "config.json, text.txt"


def test_a_missing_shard_is_named(tmp_path, rng):
    folder = write_llama(tmp_path / "m", llama_tensors(rng), shards=2)
    assert len(open_source(folder).tensors) > 0
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SourceError, match=r"shard is missing.*model-00002-of-00002\.safetensors"):
        open_source(folder)


def test_an_index_that_names_a_tensor_its_shard_lacks_is_refused(tmp_path, rng):
    folder = write_llama(tmp_path / "m", llama_tensors(rng), shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(SourceError, match=r"model\.ghost"):
        open_source(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "sub/model.safetensors"])
def test_an_index_cannot_lead_out_of_the_checkpoint(tmp_path, rng, name):
    folder = write_llama(tmp_path / "m", llama_tensors(rng), shards=2)
    index = {"weight_map": {"w": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(SourceError, match="shard is missing"):
        open_source(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_refused(tmp_path, rng, text):
    folder = write_llama(tmp_path / "m", llama_tensors(rng), shards=2)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match="index"):
        open_source(folder)


def test_a_file_truncated_anywhere_is_refused(tmp_path, rng):
    write_one(tmp_path, rng)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in [0, 5, 8, 20, len(whole) - 60, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match="truncated") as caught:
            open_source(tmp_path)
        assert str(caught.value.hint).startswith("download it again")
    path.write_bytes(whole)
    assert open_source(tmp_path).tensors["w"].shape == (6, 10)


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "not JSON"),
        ([], "not a JSON object"),
        ({"w": 3}, "not an object"),
        ({"w": {**GOOD, "shape": [2, -2]}}, "damaged"),
        ({"w": {**GOOD, "shape": "2x2"}}, "damaged"),
        ({"w": {**GOOD, "data_offsets": [0]}}, "damaged"),
        ({"w": {**GOOD, "data_offsets": [16, 0]}}, "disagree"),
        ({"w": {**GOOD, "shape": [2, 3]}}, "disagree"),
        ({"w": {**GOOD, "data_offsets": [4, 20]}}, "truncated"),
        ({"w": {**GOOD, "dtype": "Q4"}}, "unknown dtype"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, header, message):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    write_raw(tmp_path / "model.safetensors", {"w": GOOD}, bytes(16))
    assert list(open_source(tmp_path).tensors) == ["w"]
    write_raw(tmp_path / "model.safetensors", header, bytes(16))
    with pytest.raises(SourceError, match=message) as caught:
        open_source(tmp_path)
    assert (caught.value.hint is not None) == (message == "truncated")


def test_weights_of_another_dtype_are_refused_when_read(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    entry = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
    write_raw(tmp_path / "model.safetensors", {"w": entry}, bytes(16))
    tensor = open_source(tmp_path).tensors["w"]
    with pytest.raises(SourceError, match="F64"):
        tensor.read()


@pytest.mark.parametrize("text", ["", "nothing", "[1, 2]"])
def test_a_configuration_that_is_not_an_object_is_refused(tmp_path, rng, text):
    write_one(tmp_path, rng)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(tmp_path)
