"""One model in every input format gives the same package, and the logits of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rdrr_converter.convert import convert
from rdrr_manifests.package import open_package
from rdrr_runtime.reference.backend import CpuBackend
from support import gguf_files
from support.checkpoints import make_checkpoint, make_model, save_checkpoint
from support.commands import EXAMPLE, rdrr
from support.comparison import relative_error, scored, transformers_logits
from support.gguf_files import write_gguf
from support.selected_tests import is_covering
from support.tiny_models import TINY_MODELS, VOCAB

CPU = 1e-4
LLAMA, QWEN, GEMMA = TINY_MODELS[0], TINY_MODELS[3], TINY_MODELS[-1]


def inputs(checkpoint, folder):
    """Return the checkpoint as safetensors, PyTorch and GGUF."""
    import torch
    from safetensors.torch import load_file

    pickled = folder / "pickled"
    shutil.copytree(checkpoint, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(checkpoint / "model.safetensors"), pickled / "pytorch_model.bin")
    return {
        "directory": checkpoint,
        "file": checkpoint / "model.safetensors",
        "pytorch": pickled,
        "gguf": write_gguf(checkpoint, folder / "source.gguf"),
    }


def payload(folder):
    """Return everything in a package that determines the model's output."""
    package = open_package(folder)
    tensors = {name: bytes(package.read(name)) for name in package.manifest.tensors}
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return tensors, {key: manifest[key] for key in ("architecture", "inference", "eos_token_id")}


# The tests below have every kind of input of smaller models, through the API.
@pytest.mark.thorough
def test_every_kind_of_input_gives_the_same_package_of_the_bundled_model(tmp_path):
    payloads = {}
    for kind, source in inputs(EXAMPLE, tmp_path).items():
        rdrr("convert", source, tmp_path / kind, "--model-id", "same", "--quiet", code=0)
        assert rdrr("validate", tmp_path / kind, "--deep").code == 0
        payloads[kind] = payload(tmp_path / kind)
    expected = payloads.pop("directory")
    for kind, shape_and_bytes in payloads.items():
        assert shape_and_bytes[0] == expected[0], kind
        # A GGUF adds the end of a turn to the end-of-sequence ids.
        stated = {**shape_and_bytes[1], "eos_token_id": expected[1]["eos_token_id"]}
        assert stated == expected[1], kind
    text = [
        rdrr("generate", tmp_path / kind, "--prompt", "And it", "--max-tokens", "8", "--backend",
             "cpu").out
        for kind in ("directory", "gguf")
    ]  # fmt: skip
    assert text[0] == text[1]


def divided(checkpoint, folder):
    """Return the checkpoint in several files per format, and with the names that trainers write."""
    import torch
    from safetensors.torch import load_file, save_file

    state = load_file(checkpoint / "model.safetensors")
    halves = [dict(list(state.items())[part::2]) for part in range(2)]
    leave = shutil.ignore_patterns("*.safetensors")
    for kind, (stem, ending, save) in {
        "shards": ("model", "safetensors", save_file),
        "pytorch-shards": ("pytorch_model", "bin", torch.save),
    }.items():
        place = Path(shutil.copytree(checkpoint, folder / kind, ignore=leave))
        names = [f"{stem}-{part + 1:05d}-of-00002.{ending}" for part in range(2)]
        for name, half in zip(names, halves, strict=True):
            save(half, place / name)
        weights = {key: name for name, half in zip(names, halves, strict=True) for key in half}
        (place / f"{stem}.{ending}.index.json").write_text(
            json.dumps({"weight_map": weights}), encoding="utf-8"
        )
    trained = Path(shutil.copytree(checkpoint, folder / "trained", ignore=leave)) / "last.pt"
    torch.save({"state_dict": state, "step": 3}, trained)
    write_gguf(checkpoint, folder / "parts.gguf", "BF16", split=8)
    return {
        "shards": folder / "shards",
        "pytorch-shards": folder / "pytorch-shards",
        "trained": trained,
        "gguf-parts": next(folder.glob("parts-00001-of-*.gguf")),
    }


@pytest.mark.parametrize(
    ("tiny", "options"),
    [
        (LLAMA, {}),
        pytest.param(
            QWEN, {"transpose_weights": True, "fuse_gate_up": True}, marks=pytest.mark.thorough
        ),
        (GEMMA, {}),
    ],
    ids=["llama", "qwen2", "gemma3"],
)
def test_every_kind_of_input_gives_the_same_tensors(tiny, options, tmp_path, rng):
    checkpoint = make_checkpoint(tiny, tmp_path / "model", rng, num_hidden_layers=1)
    kinds = inputs(checkpoint, tmp_path)
    if tiny is LLAMA or not is_covering():
        kinds |= divided(checkpoint, tmp_path)
    convert(kinds.pop("directory"), tmp_path / "out", **options)
    expected, blocks = payload(tmp_path / "out")
    assert {"Q4_K_M", "Q6_K", "F32"} <= {
        tensor.dtype for tensor in open_package(tmp_path / "out").manifest.tensors.values()
    }
    for kind, source in kinds.items():
        convert(source, tmp_path / "other" / kind, **options)
        tensors, described = payload(tmp_path / "other" / kind)
        assert described["architecture"] == blocks["architecture"], kind
        assert "gguf" in kind or described == blocks, kind
        assert list(tensors) == list(expected), kind
        for name, content in tensors.items():
            if content != expected[name]:
                check_baked(kind, name, content, expected[name])


def check_baked(kind, name, tensors, expected):
    """Compare Gemma's norms, to which a GGUF adds 1: subtracting it may change the last bit."""
    assert "gguf" in kind, (kind, name)
    assert name.endswith("norm.weight"), (kind, name)
    values = [np.frombuffer(content, np.float32) for content in (tensors, expected)]
    np.testing.assert_allclose(*values, rtol=0, atol=2**-23)


@pytest.mark.parametrize("tiny", [LLAMA, GEMMA], ids=lambda tiny: tiny.name)
def test_logits_of_a_gguf_are_those_of_transformers(tiny, tmp_path, rng):
    model = make_model(tiny, rng, num_hidden_layers=2)
    checkpoint = save_checkpoint(model, tmp_path / "model", dtype="float32")
    ids = rng.integers(3, VOCAB, 60).tolist()
    reference = transformers_logits(model, ids)
    gguf = write_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    rdrr("convert", gguf, tmp_path / "out", "--quantize", "f32", "--quiet", code=0)
    ours = scored(CpuBackend(open_package(tmp_path / "out"), context=64), ids)
    assert relative_error(ours, reference) <= CPU


def test_a_gguf_with_rows_in_the_order_of_hugging_face_computes_something_else(
    tmp_path, rng, monkeypatch
):
    """The control: the comparison above fails if the order of rows is not undone."""
    model = make_model(LLAMA, rng, num_hidden_layers=2)
    checkpoint = save_checkpoint(model, tmp_path / "model", dtype="float32")
    ids = rng.integers(3, VOCAB, 60).tolist()
    monkeypatch.setattr(gguf_files, "interleave", lambda values, _: values)
    gguf = write_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    assert rdrr("convert", gguf, tmp_path / "out", "--quantize", "f32", "--quiet").code == 0
    ours = scored(CpuBackend(open_package(tmp_path / "out"), context=64), ids)
    assert relative_error(ours, transformers_logits(model, ids)) > 100 * CPU


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.gguf", b"GGUF" + b"\3\0\0\0" + b"\xff" * 40, "too many tensors"),
        ("m.gguf", b"GGUF" + b"\3\0\0\0" + b"\1\0\0\0\0\0\0\0" * 2, "truncated GGUF file"),
        ("m.gguf", b"nonsense" * 8, "not a GGUF file"),
        ("m.bin", b"\x80\x04nonsense", "not a file written by torch.save"),
    ],
)
def test_a_bad_input_is_one_line_and_leaves_nothing(tmp_path, name, content, words):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / name).write_bytes(content)
    done = rdrr("convert", tmp_path / name, tmp_path / "out")
    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
