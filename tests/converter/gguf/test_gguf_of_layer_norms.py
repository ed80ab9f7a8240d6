"""GGUF files of families with LayerNorm are read and written as llama.cpp has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_converter.export import export
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.package import open_package
from support.checkpoints import make_model, save_checkpoint
from support.gguf_comparison import ROUNDED, assert_same_packages
from support.gguf_older import OLDER, payloads, write_older_gguf
from support.tiny_models import OLDER_MODELS, covering

MODELS = [
    tiny for tiny in OLDER_MODELS if tiny.model_type in OLDER and ("bias", True) not in tiny.options
]
"""Those that llama.cpp has; it reads no biases of Falcon's projections."""


USUAL = {tiny.name for tiny in MODELS} - {"falcon-320", "stablelm-384"}
"""Each family has at least one."""


def saved(tiny, folder, rng):
    layers = 2 if "sliding_window_pattern" in dict(tiny.options) else 1
    model = make_model(tiny, rng, num_hidden_layers=layers)
    return save_checkpoint(model, folder, dtype="float32")


@pytest.mark.parametrize("tiny", covering(MODELS, USUAL))
def test_a_gguf_and_an_export_are_those_of_llama_cpp(tiny, tmp_path, rng):
    checkpoint = saved(tiny, tmp_path / "model", rng)
    written = write_older_gguf(checkpoint, tmp_path / "model.gguf")
    convert(checkpoint, tmp_path / "a", quantize="f32")
    convert(written, tmp_path / "b", quantize="f32")
    assert_same_packages(tmp_path / "b", tmp_path / "a", ROUNDED)
    with open_package(tmp_path / "a") as theirs, open_package(tmp_path / "b") as ours:
        assert ours.manifest.inference == theirs.manifest.inference
    export(tmp_path / "a", tmp_path / "out.gguf", to="gguf", lossless=True)
    ours, theirs = payloads(tmp_path / "out.gguf"), payloads(written)
    assert set(ours) == set(theirs)
    for name, (shape, kind, data) in theirs.items():
        assert ours[name][:2] == (shape, kind), name
        pair = (np.frombuffer(payload, np.float32) for payload in (ours[name][2], data))
        np.testing.assert_allclose(*pair, rtol=0, atol=ROUNDED, err_msg=name)
    mine, other = (read_gguf(path).metadata for path in (tmp_path / "out.gguf", written))
    assert {key: mine.get(key) for key in other} == other
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "a") as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph


def test_biases_of_falcon_are_not_written(tmp_path, rng):
    tiny = next(model for model in OLDER_MODELS if ("bias", True) in model.options)
    convert(saved(tiny, tmp_path / "model", rng), tmp_path / "package", quantize="f32")
    with pytest.raises(ConversionError, match="no biases of Falcon"):
        export(tmp_path / "package", tmp_path / "out.gguf", to="gguf")


@pytest.mark.parametrize("change", [{"alibi": True}, {"num_ln_in_parallel_attn": 3}])
def test_forms_of_falcon_that_no_op_computes_are_refused_by_the_key(tmp_path, rng, change):
    tiny = next(model for model in OLDER_MODELS if model.model_type == "falcon")
    folder = saved(tiny, tmp_path / "model", rng)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises((ConversionError, SourceError), match=next(iter(change))):
        convert(folder, tmp_path / "out")


def test_the_newer_decoder_of_falcon_may_have_one_norm(tmp_path, rng):
    tiny = next(one for one in OLDER_MODELS if one.name == "falcon-320")
    model = make_model(tiny, rng, num_hidden_layers=1, num_ln_in_parallel_attn=1)
    convert(save_checkpoint(model, tmp_path / "model"), tmp_path / "package", quantize="f32")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    convert(tmp_path / "out.gguf", tmp_path / "again", quantize="f32")
    with open_package(tmp_path / "package") as first, open_package(tmp_path / "again") as second:
        assert first.graph == second.graph
        assert not first.manifest.inference.normalization.post_attention_norm


STACKED = [tiny for tiny in MODELS if tiny.model_type in ("gpt_neox", "gpt2")]


@pytest.mark.parametrize("tiny", covering(STACKED, ["gpt_neox-320"]))
def test_quantized_stacks_are_split_and_stacked_again(tiny, tmp_path, rng):
    checkpoint = saved(tiny, tmp_path / "model", rng)
    written = write_older_gguf(checkpoint, tmp_path / "model.gguf", "Q8_0")
    convert(written, tmp_path / "package")
    export(tmp_path / "package", tmp_path / "out.gguf", to="gguf", lossless=True)
    ours, theirs = payloads(tmp_path / "out.gguf"), payloads(written)
    stack = "blk.0.attn_qkv.weight"
    assert ours[stack] == theirs[stack]
    assert json.loads((tmp_path / "package/manifest.json").read_text(encoding="utf-8"))[
        "quantization"
    ]
