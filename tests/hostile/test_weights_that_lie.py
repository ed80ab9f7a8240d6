"""Headers that misdescribe the weights are refused wherever `safetensors` refuses them.

The controls are sound files that differ from each case in one point.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.gguf.source import open_file
from rdrr_converter.sources import open_source
from rdrr_converter.sources.safetensors import read_file
from rdrr_format.errors import SourceError
from safetensors import SafetensorError, safe_open
from support.examples import examples
from support.safetensor_files import write_raw, write_safetensors


def entry(begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    width = {"F32": 4, "F16": 2}[dtype]
    return {"dtype": dtype, "shape": [(end - begin) // width], "data_offsets": [begin, end]}


SOUND = {"a": entry(0, 8), "b": entry(8, 16)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_raw(path, SOUND, bytes(16))
    assert list(read_file(path)) == ["a", "b"]  # the control
    return path


def refused(path: Path, header: object, data: bytes = bytes(16)) -> str:
    write_raw(path, header, data)
    with pytest.raises(SourceError) as caught:
        read_file(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(0, 8), "b": entry(4, 16)}, 16, "tensor b: overlaps.*from byte 8.*from byte 4"),
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlaps"),
        ({"a": entry(0, 8), "b": entry(12, 16)}, 16, "tensor b: .*that belong to no tensor"),
        ({"a": entry(4, 8), "b": entry(8, 16)}, 16, "tensor a: .*that belong to no tensor"),
        (SOUND, 17, "at the end of the file that belong to no tensor"),
        (SOUND, 15, "truncated"),
        ({**SOUND, "__metadata__": {"format": 1}}, 16, "__metadata__"),
        ({**SOUND, "__metadata__": []}, 16, "__metadata__"),
        ({"a": {**entry(0, 16), "dtype": ["F32"]}}, 16, "unknown dtype"),
        ({"a": {**entry(0, 16), "shape": [2**62, 2**62, 0]}}, 16, "impossible shape"),
        ({"a": {**entry(0, 16), "shape": [4] + [1] * 64}}, 16, "impossible shape"),
    ],
)
def test_a_header_that_does_not_describe_each_byte_once_is_refused(path, header, data, message):
    with pytest.raises(SourceError, match=message):
        raise SourceError(refused(path, header, bytes(data)))


@pytest.mark.parametrize(
    "twice",
    [
        b'{"a": %s, "b": %s, "a": %s}',
        b'{"a": %s, "b": {"dtype": "F16", %s, "c": %s}',
        b'{"__metadata__": {"x": "1", "x": "2"}, "a": %s, "b": %s, "c": %s}',
    ],
)
def test_a_duplicate_key_is_refused(path, twice):
    parts = [json.dumps(SOUND["a"]), json.dumps(SOUND["b"]), json.dumps(entry(16, 16))]
    if b"F16" in twice:
        parts[1] = parts[1].removeprefix("{")
    header = twice
    for part in parts:
        header = header.replace(b"%s", part.encode(), 1)
    assert "occurs twice" in refused(path, header)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Draw consecutive tensors, some of which may be moved, and the size of the data."""
    at, header = 0, {}
    for name in draw(st.permutations("abcde"))[: draw(st.integers(0, 5))]:
        dtype = draw(st.sampled_from(["F32", "F16"]))
        size = draw(st.integers(0, 3)) * {"F32": 4, "F16": 2}[dtype]
        shift = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 2, -2, 4, -4]))
        begin = max(0, at + shift)
        header[name] = entry(begin, begin + size, dtype)
        at = begin + size
    return header, max(0, at + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))


@examples(300)
@given(layouts())
def test_a_file_is_refused_or_read_exactly_as_safetensors_does(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[dict[str, Any], int]
) -> None:
    header, size = made
    path = tmp_path_factory.mktemp("layout") / "model.safetensors"
    data = bytes(np.arange(size, dtype=np.uint8))
    write_raw(path, header, data)
    try:
        with safe_open(path, "np") as file:
            names = file.keys()
            theirs = {name: file.get_tensor(name).tobytes() for name in names}
    except SafetensorError:
        with pytest.raises(SourceError):
            read_file(path)
        return
    ours = {name: tensor.native().tobytes() for name, tensor in read_file(path).items()}
    assert ours == theirs


def test_a_tensor_in_two_shards_is_read_from_the_shard_that_the_index_names(tmp_path, rng):
    wanted, other = rng.standard_normal((2, 4), dtype=np.float32)
    for number, values in ((1, wanted), (2, other)):
        extra = {"w": values, f"own{number}": values}
        write_safetensors(tmp_path / f"model-{number}.safetensors", extra)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    index = tmp_path / "model.safetensors.index.json"
    names = {"own1": "model-1.safetensors", "own2": "model-2.safetensors"}
    for file, values in (("model-1.safetensors", wanted), ("model-2.safetensors", other)):
        index.write_text(json.dumps({"weight_map": {**names, "w": file}}), encoding="utf-8")
        np.testing.assert_array_equal(open_source(tmp_path).tensors["w"].read()[0], values)
    index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    with pytest.raises(SourceError, match="w in one file, found also in"):
        open_source(tmp_path)


def write_gguf(path: Path, tensors: dict[str, np.ndarray]) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def moved(whole: bytes, name: bytes, offset: int) -> bytes:
    """Return the file with another offset in a vector's entry (name, u32 1, u64, u32 type, u64)."""
    at = whole.index(name) + len(name) + 4 + 8 + 4
    return whole[:at] + offset.to_bytes(8, "little") + whole[at + 8 :]


def test_gguf_tensors_that_share_bytes_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    tensors = {name: np.full(8, number, np.float32) for number, name in enumerate(("aa", "bb"))}
    whole = write_gguf(path, tensors)
    table = read_gguf(path).tensors
    assert table["bb"].offset - table["aa"].offset == 32
    path.write_bytes(moved(whole, b"bb", 32))  # the control: the true offset
    assert read_gguf(path).tensors == table
    for offset in (0, 4, 28):
        path.write_bytes(moved(whole, b"bb", offset))
        with pytest.raises(SourceError, match="overlaps tensor"):
            read_gguf(path)


def test_a_gguf_tensor_in_two_parts_is_refused(tmp_path):
    parts = [tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        write_gguf(part, {"token_embd.weight": np.ones((4, 8), np.float32)})
    with pytest.raises(SourceError, match="in two parts"):
        open_file(parts[0])
    write_gguf(parts[1], {"other.weight": np.ones((4, 8), np.float32)})
    with pytest.raises(SourceError) as caught:  # the control: metadata is missing
        open_file(parts[0])
    assert "two parts" not in str(caught.value)
