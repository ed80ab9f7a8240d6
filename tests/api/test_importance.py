"""Importance matrices: sums compared with transformers, and files that `convert` reads back."""

from __future__ import annotations

import numpy as np
import pytest
import rdrr
import torch
from gguf import GGUFReader
from rdrr.importance import measure_importance
from rdrr_format.errors import UsageError
from support.checkpoints import make_model, save_checkpoint
from support.commands import error_line
from support.commands import rdrr as run
from support.tiny_models import MORE_MODELS, TINY_MODELS

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TEXT = "In the beginning was the word, and the word was with nobody. " * 4


def tiny(name):
    return next(model for model in (*TINY_MODELS, *MORE_MODELS) if model.model_type == name)


@pytest.fixture
def model(rng):
    return make_model(tiny("llama"), rng, num_hidden_layers=2)


def convert(model, tmp_path, **options):
    save_checkpoint(model, tmp_path / "source", dtype="float32")
    rdrr.convert(tmp_path / "source", tmp_path / "package", quantize="f32", **options)
    return tmp_path / "package"


def entries_of(path):
    tensors = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}
    return {
        name.removesuffix(".in_sum2"): (sums, tensors[name.replace("in_sum2", "counts")])
        for name, sums in tensors.items()
        if name.endswith(".in_sum2")
    }


@pytest.mark.parametrize("fuse", [False, True])
def test_sums_of_squares_are_those_of_the_inputs_in_transformers(tmp_path, model, fuse):
    package = convert(model, tmp_path, fuse_gate_up=fuse)
    seen = {}

    def watch(name):
        def hook(module, inputs):
            del module
            seen[name] = seen.get(name, 0) + inputs[0].double().square().sum(dim=(0, 1)).numpy()

        return hook

    for layer, block in enumerate(model.model.layers):
        for part in PARTS:
            block.get_submodule(part).register_forward_pre_hook(watch((layer, part)))
    ids = rdrr.load(package, backend="cpu").encode(TEXT)
    window = 100
    with torch.no_grad():
        for first in range(0, len(ids) - 1, window):
            model(torch.tensor([ids[first : first + window][:-1]]))
    importance = measure_importance(package, TEXT, tmp_path / "m.gguf", window=window)
    entries = entries_of(tmp_path / "m.gguf")
    assert importance.entries == len(entries)
    for (layer, part), sums in seen.items():
        measured, counts = entries[f"blk.{layer}.{PARTS[part]}.weight"]
        np.testing.assert_allclose(measured.reshape(-1), sums, rtol=1e-3)
        assert counts.reshape(-1).tolist() == [importance.tokens]
    assert "output.weight" not in entries


def test_rows_of_experts_are_counted_by_expert(tmp_path, rng):
    mixture = make_model(tiny("qwen3_moe"), rng)
    package = convert(mixture, tmp_path)
    importance = measure_importance(package, TEXT, tmp_path / "m.gguf", limit=60)
    entries = entries_of(tmp_path / "m.gguf")
    stacks = {name: entry for name, entry in entries.items() if "_exps." in name}
    assert len(stacks) == 6  # gate, up and down of the two layers that have experts
    for name, (sums, counts) in stacks.items():
        assert counts.sum() == 2 * importance.tokens
        assert sums.shape == (6, 96 if "down" in name else 256)
        assert ((sums.sum(axis=1) > 0) == (counts.reshape(-1) > 0)).all()
    result = rdrr.convert(
        tmp_path / "source", tmp_path / "out", imatrix=tmp_path / "m.gguf", dry_run=True
    )
    # All but the embedding and the head, which have no entry.
    note = next(note for note in result.notes if "importance matrix" in note)
    guided, searched = (int(word) for word in note.split() if word.isdigit())
    assert searched - guided == 2


def test_the_same_text_gives_the_same_bytes_and_a_file_is_replaced_only_when_asked(tmp_path, model):
    package = convert(model, tmp_path)
    path, again = tmp_path / "m.gguf", tmp_path / "again.gguf"
    for target in (path, again):
        measure_importance(package, TEXT, target, origin="text.txt")
    assert path.read_bytes() == again.read_bytes()
    with pytest.raises(UsageError, match="there already"):
        measure_importance(package, TEXT, path)
    measure_importance(package, TEXT[:50], path, overwrite=True)
    assert path.read_bytes() != again.read_bytes()
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "m.gguf", "again.gguf", "source", "package",
    }  # fmt: skip


def test_the_command_writes_what_convert_takes(tmp_path, model):
    package = convert(model, tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    words = ["imatrix", package, "--text", text, "--out", tmp_path / "m.gguf"]
    done = run(*words, "--json", code=0)
    facts = done.json()
    assert facts["entries"] == 14
    assert facts["perplexity"] > 1
    assert "there already" in error_line(run(*words))
    assert "context" in error_line(run(*words, "--window", "4000", "--overwrite"))
