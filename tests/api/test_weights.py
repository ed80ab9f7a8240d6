"""A package as a mapping of names to arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import rdrr
from rdrr_format.errors import UsageError
from support.packages import llama_manifest, write_random_package

MATRIX = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def packages(shallow_checkpoint, shallow_package, tmp_path_factory):
    """The small model in each layout."""
    folder = tmp_path_factory.mktemp("layouts")
    for layout in ("row", "flat"):
        rdrr.convert(shallow_checkpoint, folder / layout, quantize="q8_0", q4k_layout=layout)
    return {"column": shallow_package, "row": folder / "row", "flat": folder / "flat"}


def test_it_is_a_mapping_of_names_to_float32_arrays(shallow_package):
    with rdrr.open(shallow_package) as weights, rdrr.open_package(shallow_package) as package:
        assert list(weights) == list(weights.keys()) == list(package.manifest.tensors)
        assert len(weights) == len(package.manifest.tensors)
        assert NORM in weights
        assert "model.abacus" not in weights
        matrix = dict(weights.items())[MATRIX]
        assert matrix.dtype == np.float32
        np.testing.assert_array_equal(matrix, package.dequantize(MATRIX))
        np.testing.assert_array_equal(weights.get(NORM), package.dequantize(NORM))
        assert weights.get("model.abacus") is None


def test_a_name_that_is_not_there_is_a_key_error_as_in_any_mapping(shallow_package):
    with rdrr.open(shallow_package) as weights:
        for read in (weights.get_tensor, weights.get_slice, weights.tensor, weights.__getitem__):
            with pytest.raises(KeyError, match=r"model\.abacus"):
                read("model.abacus")


def test_membership_and_length_read_no_tensor(shallow_package, monkeypatch):
    with rdrr.open(shallow_package) as weights:
        monkeypatch.setattr(type(weights.package), "read", None)
        monkeypatch.setattr(type(weights.package), "read_rows", None)
        assert NORM in weights
        assert len(weights) == len(list(weights))
        assert weights == weights
        with pytest.raises(TypeError):  # control
            weights[NORM]


def test_raw_is_the_stored_bytes(shallow_package):
    with rdrr.open(shallow_package) as weights:
        raw = weights.get_tensor(MATRIX, raw=True)
        assert raw.dtype == np.uint8
        assert raw.shape == (weights.tensor(MATRIX).size,)


@pytest.mark.parametrize("layout", ["column", "row", "flat"])
@pytest.mark.parametrize(
    "index",
    [slice(3, 9), slice(None), slice(-5, None), slice(5, 2), slice(1, 12, 3), slice(9, 2, -2)],
    ids=str,
)
def test_rows_of_a_slice_are_those_of_the_whole_tensor(packages, layout, index):
    with rdrr.open(packages[layout]) as weights:
        for name in (MATRIX, NORM):
            whole, part = weights[name], weights.get_slice(name)
            assert part.shape == whole.shape
            np.testing.assert_array_equal(part[index], whole[index])
        np.testing.assert_array_equal(weights.get_slice(MATRIX)[-3], weights[MATRIX][-3])


def test_rows_are_read_without_the_others(packages, monkeypatch):
    with rdrr.open(packages["row"]) as weights:
        expected = weights[MATRIX][4:6]
        monkeypatch.setattr(type(weights.package), "read", None)
        counts = []
        plain = type(weights.package).read_rows
        monkeypatch.setattr(
            type(weights.package),
            "read_rows",
            lambda self, name, first, count: (
                counts.append(count) or plain(self, name, first, count)
            ),
        )
        np.testing.assert_array_equal(weights.get_slice(MATRIX)[4:6], expected)
        assert counts == [2]


def test_an_index_outside_or_of_another_kind_is_refused(shallow_package):
    with rdrr.open(shallow_package) as weights:
        part = weights.get_slice(MATRIX)
        with pytest.raises(IndexError, match="which has 256 rows"):
            part[256]
        with pytest.raises(UsageError, match="read by rows"):
            part["first"]


def test_rows_of_every_tensor_of_a_random_package_are_those_of_the_whole(tmp_path, rng):
    write_random_package(tmp_path / "package", llama_manifest(), rng)
    with rdrr.open(tmp_path / "package") as weights:
        for name, whole in weights.items():
            np.testing.assert_array_equal(weights.get_slice(name)[1:3], whole[1:3])


def test_the_metadata_is_the_manifest_without_its_lists(shallow_package):
    with rdrr.open(shallow_package) as weights:
        assert weights.metadata["modelId"] == "small-llama"
        assert not {"tensors", "shards"} & set(weights.metadata)
        assert weights.manifest is weights.package.manifest


def test_reading_weights_imports_no_runtime_no_torch_no_wgpu_and_no_http_client(shallow_package):
    code = (
        "import sys, rdrr, rdrr_manifests.loading\n"
        f"weights = rdrr.open({str(shallow_package)!r})\n"
        "for name in weights: weights[name]; weights.get_slice(name)[:1]\n"
        "repr(weights), weights.metadata\n"
        "heavy = {one.partition('.')[0] for one in sys.modules}\n"
        "unneeded = {'torch', 'wgpu', 'rdrr_runtime', 'rdrr_device', 'transformers', 'ssl'}\n"
        "print(sorted(heavy & unneeded))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
