"""Stored bytes that are known before the conversion, in place of encoding the source."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.plan import EncodedTensors
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package, validate
from support.safetensor_files import llama_tensors, write_llama

NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def source(tmp_path, rng):
    return write_llama(tmp_path / "source", llama_tensors(rng))


@pytest.mark.parametrize("layout", ["row", "column"])
def test_a_tensor_with_a_file_takes_its_bytes_and_the_others_do_not_change(
    tmp_path, source, layout
):
    plain = convert(source, tmp_path / "plain", q4k_layout=layout)
    before = open_package(plain.destination)
    # A block whose codes are rotated still decodes to values of the range of the weights.
    stored = np.roll(before.read(NAME).reshape(-1, 144), 1, axis=0).reshape(-1)
    (tmp_path / "encoded").mkdir()
    stored.tofile(tmp_path / "encoded" / NAME)
    encoded = EncodedTensors(tmp_path / "encoded", ("rotated",))
    result = convert(source, tmp_path / "out", q4k_layout=layout, encoded=encoded)
    after = open_package(result.destination)
    assert validate(tmp_path / "out", deep=True).errors == ()
    for name in before.manifest.tensors:
        expected = stored if name == NAME else before.read(name)
        assert np.array_equal(after.read(name), expected), name
    assert "rotated" in result.notes
    assert not np.array_equal(stored, before.read(NAME))


def test_a_file_of_another_size_is_refused(tmp_path, source):
    (tmp_path / NAME).write_bytes(b"\0" * 144)
    with pytest.raises(ConversionError, match=f"{NAME}.*144"):
        convert(source, tmp_path / "out", encoded=EncodedTensors(tmp_path))
    assert not (tmp_path / "out").exists()
