"""Importance matrices: both file formats, the tensors of their entries, and the encoded blocks."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.gguf.imatrix import read_imatrix
from rdrr_converter.importance import load_importance
from rdrr_format.dtypes import parse_dtype
from rdrr_format.encoding import encode_tensor
from rdrr_format.errors import SourceError, UsageError
from rdrr_manifests.package import open_package, validate
from support.imatrix_files import write_gguf_imatrix, write_legacy_imatrix
from support.safetensor_files import from_stored, llama_tensors, write_llama

LLAMA_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WRITERS = {"gguf": write_gguf_imatrix, "legacy": write_legacy_imatrix}


LAYERS = {"num_hidden_layers": 1}


@pytest.fixture
def tensors(rng):
    return llama_tensors(rng, **LAYERS)


@pytest.fixture
def source(tmp_path, tensors):
    return write_llama(tmp_path / "source", tensors, **LAYERS)


@pytest.fixture
def entries(tensors, rng):
    """Return an entry for each projection, by llama.cpp's names."""
    entries = {}
    for ours, theirs in LLAMA_PARTS.items():
        K = tensors[f"model.layers.0.{ours}.weight"].shape[1]
        sums = np.exp(rng.standard_normal((1, K))).astype(np.float32)
        entries[f"blk.0.{theirs}.weight"] = (sums, np.array([64]))
    return entries


def columns_of(entries, part):
    sums, counts = entries[f"blk.0.{LLAMA_PARTS[part]}.weight"]
    return (sums / np.float32(counts[0]))[0].astype(np.float32)


@pytest.mark.cover
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("quality", ["ref", "best"])
def test_blocks_are_encoded_with_the_importance_of_their_columns(
    tmp_path, source, tensors, entries, kind, quality
):
    path = WRITERS[kind](tmp_path / "m", entries)
    result = convert(source, tmp_path / "out", imatrix=path, quality=quality)
    assert validate(tmp_path / "out", deep=True).errors == ()
    package = open_package(tmp_path / "out")
    assert package.manifest.conversion.options["imatrix"] is True
    for part in LLAMA_PARTS:
        name = f"model.layers.0.{part}.weight"
        dtype = parse_dtype(package.manifest.tensors[name].dtype)
        values, columns = from_stored(tensors[name]), columns_of(entries, part)
        expected = encode_tensor(values, dtype, importance=columns, quality=quality)
        assert np.array_equal(package.read(name), expected), name
        plain = encode_tensor(values, dtype, quality=quality)
        assert not np.array_equal(expected, plain)
    assert "7 of 9 tensors were quantized with the importance matrix" in result.notes
    assert any("m has no entry for model.embed_tokens.weight" in note for note in result.notes)


@pytest.mark.parametrize("layout", ["row", "flat"])
def test_each_half_of_a_fused_matrix_has_its_own_importance(tmp_path, source, entries, layout):
    path = write_gguf_imatrix(tmp_path / "m", entries)
    options = {"imatrix": path, "q4k_layout": layout}
    convert(source, tmp_path / "fused", fuse_gate_up=True, **options)
    convert(source, tmp_path / "apart", **options)
    fused, apart = open_package(tmp_path / "fused"), open_package(tmp_path / "apart")
    stem = "model.layers.0.mlp."
    halves = [apart.read(f"{stem}{part}_proj.weight") for part in ("gate", "up")]
    assert np.array_equal(fused.read(f"{stem}gate_up_proj.weight"), np.concatenate(halves))


def test_blocks_do_not_depend_on_workers_or_chunks(tmp_path, source, entries):
    path = write_gguf_imatrix(tmp_path / "m", entries)
    for workers in (1, 3):
        convert(source, tmp_path / str(workers), imatrix=path, workers=workers)
    shards = [(tmp_path / str(one) / "shard_00000.bin").read_bytes() for one in (1, 3)]
    assert shards[0] == shards[1]


def test_both_file_formats_are_read_alike_and_canonical_names_are_accepted(tmp_path, entries):
    by_gguf = read_imatrix(write_gguf_imatrix(tmp_path / "a", entries))
    by_legacy = read_imatrix(write_legacy_imatrix(tmp_path / "b", entries))
    assert by_gguf.keys() == by_legacy.keys() == entries.keys()
    for name, values in by_gguf.items():
        assert np.allclose(values, by_legacy[name], rtol=1e-6)
    ours = {"model.layers.0.mlp.up_proj.weight": entries["blk.0.ffn_up.weight"]}
    matrix = load_importance(write_gguf_imatrix(tmp_path / "c", ours))
    result = matrix.of("model.layers.0.mlp.up_proj.weight", (1, 256), tied=False).columns
    assert np.array_equal(result, by_gguf["blk.0.ffn_up.weight"])


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.mlp.experts.{}.down_proj.weight",
        "model.layers.4.block_sparse_moe.experts.{}.w2.weight",
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_experts_use_their_part_of_a_stacked_entry(tmp_path, rng, kind, name):
    sums = rng.random((3, 64)).astype(np.float32)
    entry = {"blk.4.ffn_down_exps.weight": (sums, np.array([5, 5, 5]))}
    matrix = load_importance(WRITERS[kind](tmp_path / "m", entry))
    for expert in range(3):
        result = matrix.of(name.format(expert), (1, 64), tied=False).columns
        assert np.allclose(result, sums[expert] / 5, rtol=1e-6)
    assert matrix.of(name.format(3), (1, 64), tied=False) is None


def test_an_expert_without_tokens_has_importance_1_everywhere(tmp_path, rng):
    sums = rng.random((2, 32)).astype(np.float32)
    path = write_gguf_imatrix(
        tmp_path / "m", {"blk.0.ffn_up_exps.weight": (sums, np.array([4, 0]))}
    )
    result = read_imatrix(path)["blk.0.ffn_up_exps.weight"].reshape(2, 32)
    assert np.array_equal(result[0], sums[0] / 4)
    assert (result[1] == 1).all()


def test_a_tied_head_is_found_by_either_name(tmp_path, rng):
    sums = rng.random((1, 32)).astype(np.float32)
    for name in ("token_embd.weight", "output.weight"):
        path = write_gguf_imatrix(tmp_path / name, {name: (sums, np.array([2]))})
        matrix = load_importance(path)
        result = matrix.of("model.embed_tokens.weight", (1, 32), tied=True).columns
        assert np.array_equal(result, sums[0] / 2)
    assert matrix.of("model.embed_tokens.weight", (1, 32), tied=False) is None


def test_an_importance_matrix_with_the_column_layout_is_refused(tmp_path, source, entries):
    path = write_gguf_imatrix(tmp_path / "m", entries)
    for options in ({"transpose_weights": True}, {"q4k_layout": "column"}):
        with pytest.raises(UsageError, match="`imatrix`"):
            convert(source, tmp_path / "out", imatrix=path, **options)
    assert convert(source, tmp_path / "out", imatrix=path, dry_run=True).notes


def broken(tmp_path, entries, how):
    path = write_gguf_imatrix(tmp_path / "m", entries)
    data = path.read_bytes()
    legacy = write_legacy_imatrix(tmp_path / "l", entries).read_bytes()
    name = "blk.0.attn_q.weight"
    nan, counted = (np.full((1, 256), np.nan), np.array([1])), np.array([1])
    variants = {
        "empty": b"",
        "text": b"not an importance matrix at all, but a text",
        "cut": data[:-600],
        "legacy cut": legacy[:2000],
    }
    if how in variants:
        path.write_bytes(variants[how])
    elif how == "model":
        write_gguf_imatrix(path, entries, kind="model")
    elif how == "nan":
        write_gguf_imatrix(path, {name: nan})
    elif how == "infinite":
        write_gguf_imatrix(path, {name: (np.full((1, 256), np.inf), np.array([np.inf]))})
    elif how == "negative":
        write_gguf_imatrix(path, {name: (np.full((1, 256), -1.0), counted)})
    elif how == "nothing":
        write_gguf_imatrix(path, {})
    elif how == "other model":
        write_gguf_imatrix(path, {name: (np.ones((1, 128)), counted)})
    return path


@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "text",
        "cut",
        "legacy cut",
        "model",
        "nan",
        "infinite",
        "negative",
        "nothing",
        "other model",
    ],
)
@pytest.mark.filterwarnings("error")
def test_an_invalid_importance_matrix_or_one_of_another_model_is_refused(
    tmp_path, source, entries, how
):
    path = broken(tmp_path, entries, how)
    with pytest.raises(SourceError) as caught:
        convert(source, tmp_path / "out", imatrix=path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_named(tmp_path, source):
    with pytest.raises(SourceError, match="nowhere"):
        convert(source, tmp_path / "out", imatrix=tmp_path / "nowhere")
