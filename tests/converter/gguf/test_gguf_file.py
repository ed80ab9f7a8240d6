"""The GGUF container: files from gguf-py are read, and errors name what is damaged."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import SourceError


@pytest.fixture
def path(tmp_path, rng):
    """Return a small file with metadata values of every type."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int32("a.i32", -3)
    writer.add_uint64("a.u64", 2**40)
    writer.add_float32("a.f32", 1e-5)
    writer.add_float64("a.f64", 1e-5)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "grüß dich")
    writer.add_array("a.texts", ["", "ä", "<s>"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_tensor("matrix", rng.standard_normal((3, 5)).astype(np.float32))
    writer.add_tensor("vector", np.arange(7, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m.gguf"


def test_metadata_is_read_as_it_was_written(path):
    read = read_gguf(path).metadata
    values = {key: value for key, value in read.items() if key.startswith("a.")}
    assert values == {
        "a.u8": 200,
        "a.i32": -3,
        "a.u64": 2**40,
        "a.f32": 1e-5,
        "a.f64": 1e-5,
        "a.flag": True,
        "a.text": "grüß dich",
        "a.texts": ["", "ä", "<s>"],
        "a.numbers": [1, 2, 3],
        "a.flags": [True, False],
    }
    assert type(values["a.flag"]) is bool
    assert type(values["a.u8"]) is int


def test_offsets_of_tensors_equal_those_of_gguf_py(path):
    ours, theirs = read_gguf(path).tensors, gguf.GGUFReader(path).tensors
    assert list(ours) == [tensor.name for tensor in theirs]
    for tensor in theirs:
        entry = ours[tensor.name]
        assert entry.offset == tensor.data_offset
        assert entry.size == tensor.n_bytes
        assert entry.dtype == tensor.tensor_type.name
        assert list(entry.shape) == [int(size) for size in tensor.shape][::-1]


def test_a_file_truncated_anywhere_is_refused(path):
    whole = path.read_bytes()
    assert len(read_gguf(path).tensors) == 2
    # The last tensor is padded to the alignment, which no reader needs.
    needed = max(tensor.offset + tensor.size for tensor in read_gguf(path).tensors.values())
    for length in [0, 3, 4, 23, *range(24, needed, 7), needed - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match="truncated"):
            read_gguf(path)
    path.write_bytes(whole[:needed])
    assert len(read_gguf(path).tensors) == 2


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "unknown version of GGUF.*expected 2 or 3, found 1"),
        (4, struct.pack(">I", 3), "byte order.*big endian"),
        (8, struct.pack("<Q", 2**60), "too many"),
        (16, struct.pack("<Q", 2**60), "too many"),
        (24, struct.pack("<Q", 2**62), "too many"),
    ],
)
def test_a_damaged_header_is_refused(path, at, content, message):
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + content + whole[at + len(content) :])
    with pytest.raises(SourceError, match=message):
        read_gguf(path)


def replaced(path, old, new):
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_the_undamaged_file_of_the_next_tests_is_read(path):
    replaced(path, b"a.text\x08", b"b.text\x08")
    assert read_gguf(path).metadata["b.text"] == "grüß dich"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"a.i32", b"a.u64", "key occurs twice.*a.u64"),
        (b"vector", b"matrix", "tensor occurs twice.*matrix"),
        (b"a.flag\x07", b"a.flag\x63", "a.flag: a metadata value has an unknown type.*99"),
        (
            b"a.flags\x09\0\0\0\x07",
            b"a.flags\x09\0\0\0\x09",
            "a.flags: a metadata array has an unknown type",
        ),
    ],
)
def test_a_damaged_table_is_refused(path, old, new, message):
    replaced(path, old, new)
    with pytest.raises(SourceError, match=message):
        read_gguf(path)


def with_type(path, number):
    """Replace the storage type of the tensor `matrix` in the table."""
    row = b"matrix" + struct.pack("<IQQ", 2, 5, 3)
    replaced(path, row + struct.pack("<I", 0), row + struct.pack("<I", number))
    return path


def test_another_storage_type_of_the_same_size_is_accepted(path):
    assert read_gguf(with_type(path, 1)).tensors["matrix"].dtype == "F16"


@pytest.mark.parametrize(
    ("number", "found"), [(16, "IQ2_XXS"), (35, "TQ2_0"), (15, "Q8_K"), (77, "type 77")]
)
def test_a_storage_type_that_cannot_be_read_is_named(path, number, found):
    with pytest.raises(SourceError, match=f"tensor matrix.*Q4_K.*found {found}"):
        read_gguf(with_type(path, number))


@pytest.mark.parametrize(("number", "name", "size"), [(8, "Q8_0", 32), (11, "Q3_K", 256)])
def test_a_row_length_that_is_not_a_multiple_of_the_block_size_is_refused(path, number, name, size):
    with pytest.raises(
        SourceError, match=rf"not a multiple of the {name} block size.*multiple of {size}, found 5"
    ):
        read_gguf(with_type(path, number))


@pytest.mark.parametrize("alignment", [0, 24])
def test_an_impossible_alignment_is_refused(tmp_path, alignment):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("general.alignment", alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with pytest.raises(SourceError, match=r"general\.alignment.*power of two"):
        read_gguf(tmp_path / "m.gguf")


def test_another_alignment_is_supported(tmp_path, rng):
    values = rng.standard_normal((3, 5)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(256)
    for name in "ab":
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = (tmp_path / "m.gguf").read_bytes()
    for tensor in read_gguf(tmp_path / "m.gguf").tensors.values():
        assert tensor.offset % 256 == 0
        assert content[tensor.offset : tensor.offset + tensor.size] == values.tobytes()
