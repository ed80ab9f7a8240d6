"""Logical rows equal the rows of the whole decoded tensor, in every layout and from any row on."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_format.errors import FormatError
from rdrr_manifests import logical
from rdrr_manifests.logical import RowReader, logical_tensors
from rdrr_manifests.package import open_package
from support.packages import llama_manifest, write_random_package
from support.safetensor_files import llama_tensors, write_llama

LAYOUTS = ("row", "column", "flat")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["Q4_K", "Q8_0", "F16", "BF16"])
def test_rows_equal_those_of_the_whole_tensor(tmp_path, rng, dtype, layout):
    package = write_random_package(tmp_path / "package", llama_manifest(dtype, layout), rng)
    for tensor in logical_tensors(package)[:9]:
        whole = package.dequantize(tensor.stored).reshape(tensor.rows, tensor.columns)
        reader = RowReader(package, tensor)
        first = int(rng.integers(0, tensor.rows))
        count = int(rng.integers(1, tensor.rows - first + 1))
        np.testing.assert_array_equal(reader.values(first, count), whole[first : first + count])
        if tensor.has_stored_rows:
            again = reader.stored(first, count)
            assert again.shape[0] == count
            from rdrr_format.codecs import CODECS

            values = CODECS[tensor.dtype.name].dequantize(again, tensor.columns)
            np.testing.assert_array_equal(values, whole[first : first + count])


@pytest.mark.parametrize(
    ("layout", "has_rows"), [("row", True), ("column", False), ("flat", False)]
)
def test_blocks_that_cross_rows_have_no_stored_rows(tmp_path, rng, layout, has_rows):
    # K = 384 is not a multiple of 256, so flat blocks contain parts of two rows too.
    package = write_random_package(tmp_path / "package", llama_manifest("Q4_K", layout), rng)
    tensor = next(one for one in logical_tensors(package) if "q_proj" in one.name)
    assert tensor.has_stored_rows == has_rows
    reader = RowReader(package, tensor)
    if has_rows:
        assert reader.stored(3, 2).shape == (2, 288)
        return
    with pytest.raises(FormatError, match="several rows"):
        reader.stored(3, 2)


@pytest.mark.cover
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("quantize", ["f32", "q8_0"])
def test_a_fused_gate_and_up_projection_is_split(tmp_path, rng, monkeypatch, quantize, layout):
    monkeypatch.setattr(logical, "CHUNK_WEIGHTS", 1 << 12)  # several chunks in a small tensor
    tensors = llama_tensors(rng)
    source = write_llama(tmp_path / "source", tensors)
    options = {"quantize": quantize, "q4k_layout": layout}
    convert(source, tmp_path / "joined", fuse_gate_up=True, **options)
    convert(source, tmp_path / "apart", **options)
    with open_package(tmp_path / "joined") as joined, open_package(tmp_path / "apart") as apart:
        ours = {tensor.name: tensor for tensor in logical_tensors(joined)}
        assert sorted(ours) == sorted(apart.manifest.tensors)
        for name, value in ours.items():
            reader = RowReader(joined, value)
            parts = [reader.values(*chunk) for chunk in reader.chunks()]
            assert len(parts) == -(-value.rows // 256)
            whole = np.concatenate(parts).reshape(value.shape)
            np.testing.assert_array_equal(whole, apart.dequantize(name), err_msg=name)


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", ""])
def test_names_are_canonical_for_every_prefix(tmp_path, rng, prefix):
    manifest = llama_manifest("Q8_0")
    names = list(manifest["tensors"])
    manifest["tensors"] = {
        prefix + name.removeprefix("model."): entry for name, entry in manifest["tensors"].items()
    }
    package = write_random_package(tmp_path / "package", manifest, rng)
    assert [tensor.name for tensor in logical_tensors(package)] == names
