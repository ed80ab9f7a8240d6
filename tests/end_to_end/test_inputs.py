"""One model in every kind of input: the same package, and the logits of transformers."""

from __future__ import annotations

import json
import shutil

import pytest
from rdrr_manifests.package import open_package
from rdrr_runtime.cpu import CpuBackend
from support import gguf_files
from support.checkpoints import TINY_MODELS, VOCAB, make_model, save_checkpoint
from support.commands import EXAMPLE, rdrr
from support.comparison import relative_error, scored, transformers_logits
from support.gguf_files import write_gguf

CPU = 1e-4
LLAMA, GEMMA = TINY_MODELS[0], TINY_MODELS[-1]


def inputs(checkpoint, folder):
    """The checkpoint as safetensors, PyTorch and GGUF."""
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
    """What decides a model's output."""
    package = open_package(folder)
    tensors = {name: bytes(package.read(name)) for name in package.manifest.tensors}
    manifest = json.loads((folder / "manifest.json").read_text())
    return tensors, {key: manifest[key] for key in ("architecture", "inference", "eos_token_id")}


def test_every_kind_of_input_gives_the_same_package_of_the_bundled_model(tmp_path):
    made = {}
    for kind, source in inputs(EXAMPLE, tmp_path).items():
        done = rdrr("convert", source, tmp_path / kind, "--model-id", "same", "--quiet")
        assert done.code == 0, done.err
        assert rdrr("validate", tmp_path / kind, "--deep").code == 0
        made[kind] = payload(tmp_path / kind)
    expected = made.pop("directory")
    for kind, found in made.items():
        assert found[0] == expected[0], kind
        # A GGUF adds the end of a turn to the ids that end a text.
        stated = {**found[1], "eos_token_id": expected[1]["eos_token_id"]}
        assert stated == expected[1], kind
    text = [
        rdrr("generate", tmp_path / kind, "--prompt", "And it", "--max-tokens", "8", "--backend",
             "cpu").out
        for kind in ("directory", "gguf")
    ]  # fmt: skip
    assert text[0] == text[1]


@pytest.mark.parametrize("tiny", [LLAMA, GEMMA], ids=lambda tiny: tiny.name)
def test_logits_of_a_gguf_are_those_of_transformers(tiny, tmp_path, rng):
    model = make_model(tiny, rng, num_hidden_layers=2)
    checkpoint = save_checkpoint(model, tmp_path / "model", dtype="float32")
    ids = rng.integers(3, VOCAB, 60).tolist()
    reference = transformers_logits(model, ids)
    gguf = write_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    done = rdrr("convert", gguf, tmp_path / "out", "--quantize", "f32", "--quiet")
    assert done.code == 0, done.err
    ours = scored(CpuBackend(open_package(tmp_path / "out"), context=64), ids)
    assert relative_error(ours, reference) <= CPU


def test_a_gguf_with_rows_in_the_order_of_hugging_face_computes_something_else(
    tmp_path, rng, monkeypatch
):
    """The control: were the order of rows not undone, the comparison above would see it."""
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
        ("m.gguf", b"GGUF" + b"\3\0\0\0" + b"\xff" * 40, "truncated GGUF file"),
        ("m.gguf", b"nonsense" * 8, "not a GGUF file"),
        ("m.bin", b"\x80\x04nonsense", "not a file of torch.save"),
    ],
)
def test_a_bad_input_is_one_line_and_leaves_nothing(tmp_path, name, content, words):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    done = rdrr("convert", tmp_path / name, tmp_path / "out")
    assert done.code == 1
    assert words in done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
