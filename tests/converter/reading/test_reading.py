"""Matching a checkpoint with its architecture, before anything is written."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from rdrr_converter.architectures import find_architecture
from rdrr_converter.reading.model import read_model
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.safetensor_files import (
    from_stored,
    llama_tensors,
    to_stored,
    write_llama,
    write_safetensors,
)


def read(folder, arch=None):
    source = open_source(folder)
    return read_model(source, find_architecture(source.config, arch))


def test_every_tensor_is_matched_in_storage_order(tmp_path, rng):
    model = read(write_llama(tmp_path, llama_tensors(rng)))
    names = [tensor.name for tensor in model.tensors]
    assert names[0] == "model.embed_tokens.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert set(names) == set(llama_tensors(rng))
    assert [t.group for t in model.tensors if "layers.1." in t.name] == ["layer.1"] * 9
    assert {t.group for t in model.tensors} == {"embed", "layer.0", "layer.1", "head"}
    assert not model.tied
    assert model.notes == ()


def test_layers_are_ordered_by_index(tmp_path, rng):
    config = {"num_hidden_layers": 11, "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    model = read(write_llama(tmp_path, llama_tensors(rng, **config), **config))
    layers = [tensor.layer for tensor in model.tensors if tensor.layer is not None]
    assert layers == sorted(layers)
    assert max(layers) == 10


def test_a_missing_tensor_is_named(tmp_path, rng):
    tensors = llama_tensors(rng)
    assert read(write_llama(tmp_path, tensors)).sizes.num_layers == 2
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(SourceError, match=r"missing.*layers\.1\.mlp\.up_proj"):
        read(write_llama(tmp_path, tensors))


def test_a_tensor_with_a_wrong_shape_is_named_with_both_shapes(tmp_path, rng):
    tensors = llama_tensors(rng)
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = to_stored(np.zeros((64, 256)), "BF16")
    with pytest.raises(SourceError, match=r"k_proj.*\[128, 256\].*\[64, 256\]"):
        read(write_llama(tmp_path, tensors))


def test_an_unexpected_tensor_is_refused(tmp_path, rng):
    tensors = llama_tensors(rng)
    tensors["model.vision.weight"] = to_stored(np.zeros((2, 2)), "F32")
    with pytest.raises(SourceError, match=r"unexpected.*model\.vision\.weight"):
        read(write_llama(tmp_path, tensors))


def test_computed_buffers_are_left_out_with_a_note(tmp_path, rng):
    tensors = llama_tensors(rng)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors[name] = to_stored(np.zeros(32), "F32")
    model = read(write_llama(tmp_path, tensors))
    assert name not in {tensor.name for tensor in model.tensors}
    assert [name in note for note in model.notes] == [True]


def test_names_without_the_usual_prefix_become_canonical(tmp_path, rng):
    tensors = llama_tensors(rng)
    del tensors["lm_head.weight"]
    bare = {name.removeprefix("model."): array for name, array in tensors.items()}
    model = read(write_llama(tmp_path, bare, tie_word_embeddings=True))
    assert {tensor.name for tensor in model.tensors} == set(tensors)


WRAPPED = {
    "plain": ("", ""),
    "DataParallel": ("module.", ""),
    "twice": ("module.module.", ""),
    "compiled": ("_orig_mod.", ""),
    "compiled, then DataParallel": ("module._orig_mod.", ""),
    "DataParallel, then compiled": ("_orig_mod.module.", ""),
    "compiled layers": ("", "_orig_mod."),
    "recomputed layers of FSDP": ("", "_fsdp_wrapped_module._checkpoint_wrapped_module."),
}
"""What stands before all names, and behind the number of a layer."""


@pytest.mark.parametrize(("outer", "inner"), WRAPPED.values(), ids=WRAPPED)
def test_names_of_a_wrapped_model_are_those_of_the_model(tmp_path, rng, outer, inner):
    tensors = llama_tensors(rng)
    wrapped = {
        outer + re.sub(r"(layers\.\d+\.)", rf"\1{inner}", name): value
        for name, value in tensors.items()
    }
    source = open_source(write_llama(tmp_path, wrapped, shards=2))
    assert set(source.tensors) == {tensor.name for tensor in read(tmp_path).tensors} == set(tensors)
    for name, tensor in source.tensors.items():
        assert tensor.name == name
        np.testing.assert_array_equal(tensor.read().ravel(), from_stored(tensors[name]).ravel())


@pytest.mark.parametrize("name", ["_orig_mod.model.norm.weight", "model.norm_orig_mod.weight"])
def test_a_name_that_two_tensors_would_get_and_another_ending_stay(tmp_path, rng, name):
    tensors = llama_tensors(rng)
    tensors[name] = tensors["model.norm.weight"]
    with pytest.raises(SourceError, match=f"unexpected tensors .*1 more: {name}"):
        read(write_llama(tmp_path, tensors))


def test_an_existing_bias_is_kept_and_a_stated_bias_is_required(tmp_path, rng):
    tensors = llama_tensors(rng)
    model = read(write_llama(tmp_path, tensors))
    assert not model.inference.attention.attention_bias
    name = "model.layers.0.self_attn.q_proj.bias"
    tensors[name] = to_stored(rng.standard_normal(256, np.float32), "BF16")
    model = read(write_llama(tmp_path, tensors))
    assert name in {tensor.name for tensor in model.tensors}
    assert model.inference.attention.attention_bias
    with pytest.raises(SourceError, match="7 tensors are missing"):
        read(write_llama(tmp_path, tensors, attention_bias=True))


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_the_tensors_decide_whether_the_head_is_tied(tmp_path, rng, claimed, head):
    tensors = llama_tensors(rng)
    if head == "absent":
        del tensors["lm_head.weight"]
    elif head == "equal":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    folder = write_llama(tmp_path, tensors, tie_word_embeddings=claimed)
    if head == "absent" and not claimed:  # transformers would draw a head at random
        with pytest.raises(SourceError, match=r"no lm_head\.weight.*tie_word_embeddings: false"):
            read(folder)
        return
    model = read(folder)
    tied = head == "absent" or (head == "equal" and claimed)
    assert model.tied == tied
    assert model.inference.output.tie_word_embeddings == tied
    assert ("lm_head.weight" in {tensor.name for tensor in model.tensors}) == (not tied)
    # A contradiction of the configuration, or a dropped tensor, is mentioned in a note.
    surprising = claimed and head != "absent"
    assert bool(model.notes) == surprising


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("stated", ["in the file", "in the index", "by the configuration"])
def test_an_embedding_of_which_only_the_name_of_the_head_is_stored_is_read(
    tmp_path, rng, stated, prefix
):
    """safetensors stores tensors that share their memory under one of their names."""
    tensors = llama_tensors(rng)
    del tensors[EMBEDDING]
    tensors = {name.replace("model.", prefix): array for name, array in tensors.items()}
    shards = 2 if stated == "in the index" else 1
    folder = write_llama(tmp_path, tensors, shards=shards, tie_word_embeddings=True)
    embedding = EMBEDDING.replace("model.", prefix)
    if stated == "in the file":
        write_safetensors(folder / "model.safetensors", tensors, **{embedding: "lm_head.weight"})
    elif stated == "in the index":
        index = folder / "model.safetensors.index.json"
        content = json.loads(index.read_text(encoding="utf-8"))
        metadata = {"total_size": 7, embedding: "lm_head.weight"}
        index.write_text(json.dumps({**content, "metadata": metadata}), encoding="utf-8")
    model = read(folder)
    assert model.tied
    (found,) = (tensor for tensor in model.tensors if tensor.role == "embedding")
    assert found.name == EMBEDDING
    np.testing.assert_array_equal(found.source.read(), from_stored(tensors["lm_head.weight"]))
    assert len(model.tensors) == len(tensors)


def test_names_that_share_a_tensor_are_read_whatever_they_are(tmp_path, rng):
    tensors = llama_tensors(rng)
    second, first = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (1, 0))
    del tensors[second]
    write_llama(tmp_path, tensors)
    with pytest.raises(SourceError, match=rf"missing.*{second}"):
        read(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", tensors, **{second: first})
    sources = {tensor.name: tensor.source for tensor in read(tmp_path).tensors}
    np.testing.assert_array_equal(sources[second].read(), sources[first].read())


def test_an_embedding_that_is_not_tied_and_not_stored_is_missing(tmp_path, rng):
    tensors = llama_tensors(rng)
    del tensors[EMBEDDING]
    with pytest.raises(SourceError, match=f"missing.*{EMBEDDING}"):
        read(write_llama(tmp_path, tensors))


def test_sizes_that_contradict_each_other_are_refused(tmp_path, rng):
    tensors = llama_tensors(rng)
    with pytest.raises(SourceError, match="num_key_value_heads"):
        read(write_llama(tmp_path, tensors, num_key_value_heads=3))
    with pytest.raises(SourceError, match="rms_norm_eps"):
        read(write_llama(tmp_path, tensors, rms_norm_eps="small"))
