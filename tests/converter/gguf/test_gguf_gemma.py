"""GGUF files of Gemma 4 and Gemma 3n are read and written as llama.cpp has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.families import gemma4
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support.checkpoints import make_model, save_checkpoint
from support.gguf_comparison import assert_same_packages
from support.gguf_files import decoded_tensors
from support.gguf_gemma import LIKE_FILES, gemma3n_of, write_gemma_gguf
from support.tiny_models import GEMMA3N_MODELS, GEMMA4_MODELS, VOCAB, covering

BLOCKS = ("attention", "ffn", "layerPattern", "normalization", "output", "rope")


def assert_read(folder, tiny, rng, **options):
    """Write a checkpoint `source` and the same as `m.gguf`, and compare their packages."""
    model = make_model(tiny, rng, **options)
    save_checkpoint(model, folder / "source", dtype="float32")
    path = write_gemma_gguf(folder / "source", folder / "m.gguf", model.config)
    convert(folder / "source", folder / "theirs", quantize="f32")
    convert(path, folder / "ours", quantize="f32")
    ours, theirs = (
        json.loads((folder / name / "manifest.json").read_text(encoding="utf-8"))
        for name in ("ours", "theirs")
    )
    norms = [
        manifest["inference"]["normalization"].pop("rmsNormEps") for manifest in (ours, theirs)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for block in BLOCKS:
        assert ours["inference"][block] == theirs["inference"][block]
    for key in ("architecture", "moeConfig"):
        assert ours[key] == theirs[key]
    with open_package(folder / "ours") as a, open_package(folder / "theirs") as b:
        assert set(a.manifest.tensors) == set(b.manifest.tensors)
        for name in b.manifest.tensors:
            np.testing.assert_array_equal(a.dequantize(name), b.dequantize(name), err_msg=name)


def assert_written(folder, unread=frozenset()):
    """Export the package `theirs`, and compare the file with `m.gguf`.

    Args:
        folder: Where both are.
        unread: Names of tensors that only the exported file has, all of zeros.
    """
    written = folder / "m.gguf"
    export(folder / "theirs", folder / "out.gguf", to="gguf", lossless=True)
    mine, other = (decoded_tensors(path) for path in (folder / "out.gguf", written))
    assert mine.keys() - other.keys() == unread
    assert not any(mine[name].any() for name in unread)
    for name, values in other.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)
    mine, other = (read_gguf(path).metadata for path in (folder / "out.gguf", written))
    for key, value in other.items():
        if key.endswith(("head_count_kv", "feed_forward_length")) and isinstance(value, list):
            listed = mine[key] if isinstance(mine[key], list) else [mine[key]] * len(value)
            assert listed == value, key
        elif key.endswith("sparsity_scale"):
            np.testing.assert_allclose(mine[key], value, rtol=1e-6)
        else:
            expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert mine.get(key) == expected, key
    convert(folder / "out.gguf", folder / "again", quantize="f32")
    assert_same_packages(folder / "again", folder / "theirs")


@pytest.mark.parametrize("tiny", covering(GEMMA4_MODELS, ["gemma4_text-384", "gemma4_text-320"]))
def test_a_gguf_and_an_export_of_gemma_4_are_those_of_llama_cpp(tmp_path, rng, tiny):
    assert_read(tmp_path, tiny, rng, num_hidden_layers=2)
    assert_written(tmp_path)


def test_a_gguf_of_gemma_3n_gives_the_package_of_its_checkpoint(tmp_path, rng):
    assert_read(tmp_path, GEMMA3N_MODELS[0], rng, **LIKE_FILES["gemma3n_text"])


@pytest.mark.parametrize("with_keys", [5, pytest.param(20, marks=pytest.mark.thorough)])
def test_an_export_of_gemma_3n_has_the_keys_of_all_layers_since_llama_cpp_loads_them(
    tmp_path, rng, monkeypatch, with_keys
):
    assert gemma4._LAYERS_WITH_KEYS == 20, "llama.cpp's number, which makes a large model"
    monkeypatch.setattr(gemma4, "_LAYERS_WITH_KEYS", with_keys)
    layers = with_keys + 2
    model = make_model(GEMMA3N_MODELS[0], rng, **gemma3n_of(layers, with_keys))
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    write_gemma_gguf(tmp_path / "source", tmp_path / "m.gguf", model.config)
    convert(tmp_path / "source", tmp_path / "theirs", quantize="f32")
    parts = ("attn_k.weight", "attn_k_norm.weight", "attn_v.weight")
    assert_written(
        tmp_path, {f"blk.{layer}.{part}" for layer in (layers - 2, layers - 1) for part in parts}
    )


def test_tokens_without_a_row_in_the_table_get_copies_of_the_first_row(tmp_path, rng):
    tiny = GEMMA4_MODELS[1]
    model = make_model(tiny, rng, num_hidden_layers=2, vocab_size_per_layer_input=VOCAB - 9)
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", quantize="q8_0")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    table = decoded_tensors(tmp_path / "out.gguf")["per_layer_token_embd.weight"]
    with open_package(tmp_path / "package") as package:
        rows = package.dequantize("model.embed_tokens_per_layer.weight")
    np.testing.assert_array_equal(table, rows[[*range(VOCAB - 9), *[0] * 9]])
    convert(tmp_path / "out.gguf", tmp_path / "again")
    ids = rng.integers(VOCAB - 20, VOCAB, 12).tolist()
    logits = [
        CpuBackend(open_package(tmp_path / name), context=16).logits(ids, 0, all_rows=True)
        for name in ("package", "again")
    ]
    np.testing.assert_array_equal(*logits)


def test_another_gemma_3n_than_llama_cpp_assumes_is_refused(tmp_path, rng):
    model = make_model(GEMMA3N_MODELS[0], rng, **LIKE_FILES["gemma3n_text"])
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    convert(tmp_path / "source", tmp_path / "package", quantize="f16")
    with pytest.raises(ConversionError, match="assumes another value for every Gemma 3n"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")
