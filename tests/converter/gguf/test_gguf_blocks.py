"""Block types of a GGUF are decoded as by gguf-py, and copied unless a recipe asks for others."""

from __future__ import annotations

import re
from functools import partial

import gguf
import numpy as np
import pytest
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.convert import convert
from rdrr_converter.sources import open_source
from rdrr_manifests.package import open_package
from support.checkpoints import write_tokenizer
from support.gguf_entries import FLOAT16S
from support.gguf_files import interleave, q4_k_m, write_gguf
from support.safetensor_files import llama_tensors, write_llama

BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
LAYER, HEAD = "model.layers.0", 64
SIZES = {"num_hidden_layers": 1}


@pytest.fixture
def llama(tmp_path, rng):
    """Return a small checkpoint whose K is 256 and 512."""
    folder = write_llama(tmp_path / "llama", llama_tensors(rng, **SIZES), **SIZES)
    write_tokenizer(folder)
    return folder


def stored(package, name):
    return bytes(package.read(name))


@pytest.mark.parametrize("dtype", [*BLOCK_TYPES, *FLOAT16S])
def test_blocks_decode_as_gguf_py_decodes_them(tmp_path, llama, dtype):
    path = write_gguf(llama, tmp_path / "m.gguf", dtype)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    source = open_source(path)
    for ours, name in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        tensor, raw = (
            source.tensors[f"model.layers.0.{ours}.weight"],
            theirs[f"blk.0.{name}.weight"],
        )
        wanted = gguf.quants.dequantize(raw.data, raw.tensor_type)
        np.testing.assert_array_equal(tensor.read(), wanted)
        assert tensor.dtype == dtype
        assert measure(tensor).largest == np.abs(wanted).max()
        for rows, columns in ((slice(3, 9), slice(7, 250)), (slice(None), slice(129, 131))):
            np.testing.assert_array_equal(tensor.read(rows, columns), wanted[rows, columns])
            np.testing.assert_array_equal(tensor.read_transposed(columns), wanted[:, columns].T)
    queries, raw = source.tensors[f"{LAYER}.self_attn.q_proj.weight"], theirs["blk.0.attn_q.weight"]
    wanted = gguf.quants.dequantize(raw.data, raw.tensor_type)
    np.testing.assert_array_equal(interleave(queries.read(), HEAD), wanted)
    np.testing.assert_array_equal(queries.read(slice(33, 200)), queries.read()[33:200])


@pytest.mark.parametrize("dtype", FLOAT16S)
def test_types_that_a_package_cannot_store_are_requantized(tmp_path, llama, dtype):
    path = write_gguf(llama, tmp_path / "m.gguf", dtype)
    result = convert(path, tmp_path / "out", quantize="q8_0")
    count = sum(tensor.dtype == "Q8_0" for tensor in result.tensors)
    expected = f"{count} tensors: {dtype} in the source, dequantized and quantized again as Q8_0"
    assert expected in result.notes
    source, package = open_source(path), open_package(tmp_path / "out")
    for name in (f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.mlp.up_proj.weight"):
        wanted, decoded = source.tensors[name].read(), package.dequantize(name)
        assert 0 < np.linalg.norm(decoded - wanted) <= 0.01 * np.linalg.norm(wanted)


@pytest.mark.parametrize("fuse", [False, True], ids=["apart", "fused"])
def test_a_q4_k_m_gguf_is_copied_bit_for_bit(tmp_path, llama, fuse):
    path = write_gguf(llama, tmp_path / "m.gguf", partial(q4_k_m, layers=1))
    result = convert(path, tmp_path / "copied", fuse_gate_up=fuse)
    # Blocks never span rows, so quantizing rows in another order gives the same blocks.
    convert(llama, tmp_path / "made", fuse_gate_up=fuse)
    copied, rebuilt = open_package(tmp_path / "copied"), open_package(tmp_path / "made")
    assert copied.manifest.tensors == rebuilt.manifest.tensors
    for name in rebuilt.manifest.tensors:
        assert stored(copied, name) == stored(rebuilt, name), name
    blocks = [tensor for tensor in result.tensors if tensor.dtype != "F32"]
    assert all("copied" in block.why and block.relative_rmse == 0.0 for block in blocks)
    assert f"{len(blocks)} tensors: blocks copied from the source bit for bit" in result.notes


def mixed(name):
    """Return types that no recipe of ours gives: some blocks, some scalars, one decode-only."""
    types = {"token_embd": "F16", "attn_v": "BF16", "ffn_down": "Q5_1", "ffn_up": "IQ4_XS"}
    types["attn_output"] = "Q4_1"
    part = name.split(".")[-2]
    return types.get(part, "Q6_K" if part == "attn_k" else "Q5_K")


@pytest.mark.parametrize("fuse", [False, True], ids=["apart", "fused"])
def test_without_a_quantization_every_type_of_the_gguf_is_kept(tmp_path, llama, fuse):
    path = write_gguf(llama, tmp_path / "m.gguf", mixed)
    result = convert(path, tmp_path / "out", fuse_gate_up=fuse)
    package = open_package(tmp_path / "out")
    tensors = package.manifest.tensors
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for layer in range(1):
        # The rows of v, o and down are in the same order in both files.
        for ours, name in (("self_attn.v", "attn_v"), ("self_attn.o", "attn_output")):
            raw = theirs[f"blk.{layer}.{name}.weight"]
            stored_name = f"model.layers.{layer}.{ours}_proj.weight"
            assert stored(package, stored_name) == raw.data.tobytes(), stored_name
            assert tensors[stored_name].parsed_dtype().name == raw.tensor_type.name
        down = theirs[f"blk.{layer}.ffn_down.weight"]
        assert stored(package, f"model.layers.{layer}.mlp.down_proj.weight") == down.data.tobytes()
    embedding = theirs["token_embd.weight"].data.tobytes()
    assert stored(package, "model.embed_tokens.weight") == embedding
    # IQ4_XS has no codec: the recipe decides, also for gate where both are one matrix.
    changed = {one.name.split("mlp.")[-1] for one in result.tensors if "IQ4_XS" in one.why}
    assert changed == ({"gate_up_proj.weight"} if fuse else {"up_proj.weight"})
    manifest = package.manifest
    assert manifest.conversion.options["quantize"] == "source"
    # The type of most weights, and the mix that it belongs to.
    expected = ("Q4_K_M", "q4k") if fuse else ("Q5_K_M", "q5k")
    assert (manifest.quantization, manifest.quantization_info.weights) == expected


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_gguf_of_a_legacy_type_is_copied_bit_for_bit(tmp_path, llama, dtype):
    path = write_gguf(llama, tmp_path / "m.gguf", dtype)
    result = convert(path, tmp_path / "out")
    package = open_package(tmp_path / "out")
    raw = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    assert stored(package, "model.layers.0.mlp.up_proj.weight") == raw.data.tobytes()
    blocks = {name for name, tensor in package.manifest.tensors.items() if tensor.dtype != "F32"}
    assert {package.manifest.tensors[name].dtype for name in blocks} == {dtype}
    assert result.notes[0].startswith(f"{len(blocks)} tensors: blocks copied from the source")


def test_a_given_quantization_decides_over_the_types_of_the_gguf(tmp_path, llama):
    path = write_gguf(llama, tmp_path / "m.gguf", mixed)
    convert(path, tmp_path / "out", quantize="q6_k")
    manifest = open_package(tmp_path / "out").manifest
    assert {tensor.dtype for tensor in manifest.tensors.values()} == {"F32", "Q6_K"}
    assert manifest.conversion.options["quantize"] == "q6_k"
    assert manifest.quantization == "Q6_K"
    convert(path, tmp_path / "typed", tensor_types={"o_proj": "Q8_0"})
    typed = open_package(tmp_path / "typed").manifest.tensors
    assert typed["model.layers.0.self_attn.o_proj.weight"].dtype == "Q8_0"
    assert typed["model.layers.0.self_attn.v_proj.weight"].dtype == "BF16"


def test_an_unquantized_gguf_is_quantized_by_default(tmp_path, llama):
    path = write_gguf(llama, tmp_path / "m.gguf", "F16")
    convert(path, tmp_path / "out")
    manifest = open_package(tmp_path / "out").manifest
    assert manifest.quantization == "Q4_K_M"
    assert manifest.conversion.options["quantize"] == "q4_k_m"
    assert manifest.tensors["model.layers.0.mlp.up_proj.weight"].dtype == "Q4_K_M"


def test_rows_keep_their_blocks_when_they_are_reordered(tmp_path, llama):
    path = write_gguf(llama, tmp_path / "m.gguf", "Q8_0")
    convert(path, tmp_path / "out", quantize="q8_0")
    result = np.frombuffer(
        stored(open_package(tmp_path / "out"), "model.layers.0.self_attn.q_proj.weight"), np.uint8
    ).reshape(256, -1)
    raw = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight").data
    for row in (0, 1, 31, 32, 63, 64, 200):
        head, half, place = row // 64, row % 64 // 32, row % 32
        np.testing.assert_array_equal(result[row], raw[head * 64 + 2 * place + half])
    assert not np.array_equal(result, raw)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantize": "q4_k_m"}, "Q8_0 in the source, dequantized and quantized again as Q4_K"),
        ({"q4k_layout": "column"}, "Q8_0 in the source, dequantized and quantized again as Q4_K"),
        ({"profile": "doppler"}, "Q8_0 in the source, dequantized and quantized again as Q4_K"),
        ({"quantize": "f16"}, "Q8_0 in the source, stored as F16"),
        ({"quantize": "q8_0", "q4k_layout": "column"}, "dequantized and quantized again as Q8_0"),
    ],
)
def test_a_note_says_what_is_requantized(tmp_path, llama, options, words):
    path = write_gguf(llama, tmp_path / "m.gguf", "Q8_0")
    result = convert(path, tmp_path / "out", **options)
    assert any(words in note for note in result.notes)
    changed = next(
        tensor for tensor in result.tensors if tensor.name.endswith("0.mlp.up_proj.weight")
    )
    assert "Q8_0 in the source" in changed.why
    # A checkpoint that was never quantized has no such note.
    plain = convert(llama, tmp_path / "plain", dry_run=True, **options)
    assert not any("in the source" in note or "copied" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("dtype", "options", "way"),
    [
        ("Q4_0", {"transpose_weights": True}, "without `quantize`, `transpose_weights`"),
        ("Q4_1", {"quantize": "q4_k_m"}, "without `quantize`, `transpose_weights`"),
        ("IQ4_NL", {}, "`quantize` f16 stores them as they are"),
    ],
)
def test_a_second_quantization_is_a_warning_with_its_loss(tmp_path, llama, dtype, options, way):
    path = write_gguf(llama, tmp_path / "m.gguf", dtype)
    result = convert(path, tmp_path / "out", **options)
    warning = next(note for note in result.notes if f"in {dtype} were quantized a second" in note)
    loss = float(re.search(r"by ([\d.]+) %", warning)[1])
    again = [tensor for tensor in result.tensors if dtype in tensor.why and "Q4_K" in tensor.dtype]
    errors = [100 * tensor.relative_rmse for tensor in again]
    assert min(errors) <= 1.05 * loss
    assert 0.95 * loss <= max(errors)
    assert way in warning
    # Neither copied blocks nor values that keep their precision are quantized a second time.
    for kept in ({}, {"quantize": "f16"})[dtype == "IQ4_NL" :]:
        plain = convert(path, tmp_path / f"plain{len(kept)}", **kept)
        assert not any("second time" in note for note in plain.notes)


@pytest.mark.parametrize("options", [{"transpose_weights": True}, {"quantize": "f32"}])
def test_weights_of_blocks_survive_another_layout_or_type(tmp_path, llama, options):
    path = write_gguf(llama, tmp_path / "m.gguf", "Q6_K")
    convert(path, tmp_path / "out", **options)
    package, source = open_package(tmp_path / "out"), open_source(path)
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        wanted, decoded = source.tensors[name].read(), package.dequantize(name)
        error = np.sqrt(np.mean((decoded - wanted) ** 2) / np.mean(wanted**2))
        assert error == 0.0 if "quantize" in options else error < 0.15


def test_blocks_that_decode_to_nan_are_refused(tmp_path, llama):
    path = write_gguf(llama, tmp_path / "m.gguf", "Q8_0")
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    content = bytearray(path.read_bytes())
    content[tensor.data_offset : tensor.data_offset + 2] = np.float16(np.nan).tobytes()
    convert(path, tmp_path / "good", quantize="q8_0")
    path.write_bytes(content)
    with pytest.raises(Exception, match=r"model\.layers\.0\.mlp\.up_proj\.weight.*not finite"):
        convert(path, tmp_path / "out", quantize="q8_0")


def test_tensors_in_the_fallback_types_of_llama_cpp_are_copied_too(tmp_path, rng):
    sizes = {**SIZES, "hidden_size": 288, "num_attention_heads": 4, "head_dim": 72}
    folder = write_llama(tmp_path / "m", llama_tensors(rng, **sizes), **sizes)
    write_tokenizer(folder)
    tails = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}

    def choose(name):
        dtype = q4_k_m(name, layers=1)
        return dtype if "ffn_down" in name else tails[dtype]  # only its K is 512

    path = write_gguf(folder, tmp_path / "m.gguf", choose)
    convert(path, tmp_path / "copied", k_tail="ggml")
    convert(folder, tmp_path / "made", k_tail="ggml")
    copied, rebuilt = open_package(tmp_path / "copied"), open_package(tmp_path / "made")
    assert {tensor.dtype for tensor in rebuilt.manifest.tensors.values()} > {"Q5_0", "Q8_0"}
    for name in rebuilt.manifest.tensors:
        assert stored(copied, name) == stored(rebuilt, name), name
