"""The GGUF files and the structs for llama.cpp, checked without llama.cpp."""

from __future__ import annotations

import ctypes
import tarfile

import gguf
import numpy as np
import pytest
import rdrr
from _gguf import ggml_name, write_gguf
from _prepared import Clock, gguf_file
from configured_shapes import CONFIGURED
from peers import llama_abi, llama_cpp
from shapes import SHAPES
from synthesize import synthesize


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    packages_of = {}
    for name in ("tiny", "tiny-qwen3", "tiny-gemma3"):
        synthesize(SHAPES[name], folder / name)
        for tail in ("ggml", "pad"):
            where = folder / f"{name}-{tail}"
            rdrr.convert(folder / name, where, k_tail=tail)
            packages_of[name, tail] = rdrr.open_package(where)
    return packages_of


def _read(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def _half_split(rows, heads, dim):
    """Return rows in llama.cpp's order permuted back to the checkpoint's order of halves."""
    order = [head * dim + 2 * (i % (dim // 2)) + i // (dim // 2)
             for head in range(heads) for i in range(dim)]  # fmt: skip
    return rows[order]


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3", "tiny-gemma3"])
def test_a_gguf_file_holds_the_blocks_of_the_package(name, packages, tmp_path):
    package, shape = packages[name, "ggml"], SHAPES[name]
    write_gguf(package, tmp_path / "out.gguf")
    arch = "llama" if name == "tiny" else name.removeprefix("tiny-")
    written = _read(tmp_path / "out.gguf")
    assert len(written) == len(package.manifest.tensors)
    for tensor_name, tensor in package.manifest.tensors.items():
        entry = written[ggml_name(tensor_name, arch)]
        assert entry.tensor_type.name == tensor.parsed_dtype().name
        assert tuple(entry.shape[::-1]) == tensor.shape
        raw = package.read(tensor_name)
        if len(tensor.shape) == 1:
            values = raw.view(np.float32) + (1 if shape.norm_offset else 0)
            np.testing.assert_array_equal(np.asarray(entry.data), values.astype(np.float32))
            continue
        rows = np.asarray(entry.data).view(np.uint8).reshape(tensor.shape[0], -1)
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(tensor_name.split(".")[-2])
        if arch == "llama" and heads:
            assert (rows.ravel() != raw).any()  # the control: the orders differ
            rows = _half_split(rows, heads, shape.head_dim)
        np.testing.assert_array_equal(rows.ravel(), raw)


def test_a_gguf_file_states_the_sizes_and_has_no_vocabulary(packages, tmp_path):
    write_gguf(packages["tiny-gemma3", "ggml"], tmp_path / "out.gguf")
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    metadata = {name: fields[name].contents() for name in fields}
    assert metadata["general.architecture"] == "gemma3"
    assert metadata["tokenizer.ggml.model"] == "none"
    assert metadata["gemma3.vocab_size"] == SHAPES["tiny-gemma3"].vocab
    assert metadata["gemma3.attention.sliding_window"] == 512
    assert metadata["gemma3.rope.freq_base"] == 1e6


@pytest.mark.parametrize(
    "name", [pytest.param("tiny-gpt-oss", marks=pytest.mark.thorough), "tiny-deepseek-v2"]
)
def test_a_configured_shape_is_exported_with_its_vocabulary(name, tmp_path):
    path = gguf_file(tmp_path, name, "q8_0", Clock())
    shape = CONFIGURED[name]
    assert tuple(_read(path)["token_embd.weight"].shape[::-1]) == (
        shape.vocab,
        shape.values["hidden_size"],
    )
    fields = gguf.GGUFReader(path).fields
    assert len(fields["tokenizer.ggml.tokens"].contents()) == shape.vocab
    assert fields["tokenizer.ggml.merges"].contents()  # llama.cpp refuses a file without merges


def test_padded_rows_cannot_be_written(packages, tmp_path):
    with pytest.raises(ValueError, match="padded rows"):
        write_gguf(packages["tiny-gemma3", "pad"], tmp_path / "out.gguf")


def test_structs_have_the_sizes_that_the_release_fills():
    assert ctypes.sizeof(llama_abi.ModelParams) == 80
    assert ctypes.sizeof(llama_abi.ContextParams) == 160
    assert ctypes.sizeof(llama_abi.Batch) == 56
    assert llama_abi.ContextParams.flash_attn_type.offset == 52
    assert llama_abi.ModelParams.use_extra_bufts.offset == 74


@pytest.mark.parametrize(
    ("struct", "defaults"),
    [
        (llama_abi.ModelParams, llama_abi.MODEL_DEFAULTS),
        (llama_abi.ContextParams, llama_abi.CONTEXT_DEFAULTS),
    ],
)
def test_defaults_of_another_release_are_refused(struct, defaults):
    params = struct(**defaults)
    llama_abi.check_defaults(params, defaults)
    # The bytes as a release with one more field in front would lay them out.
    moved = struct.from_buffer_copy(bytes(4) + bytes(params)[:-4])
    with pytest.raises(llama_cpp.UnavailableError, match=struct.__name__):
        llama_abi.check_defaults(moved, defaults)


def test_libraries_are_found_in_a_tarball_or_a_folder(tmp_path):
    inner = tmp_path / "package" / "bins"
    inner.mkdir(parents=True)
    (inner / "libllama.some.so").write_bytes(b"not a library")
    archive = tmp_path / "package.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "package", "package")
    for where in (archive, tmp_path / "package"):
        with llama_cpp.unpacked(where) as folder:
            assert (folder / "libllama.some.so").is_file()
            with pytest.raises(llama_cpp.UnavailableError, match="do not load"):
                llama_cpp.LlamaCpp(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    for where in (empty, tmp_path / "missing"):
        with (
            pytest.raises(llama_cpp.UnavailableError, match="no libllama"),
            llama_cpp.unpacked(where),
        ):
            pass
