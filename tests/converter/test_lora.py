"""Adapters: whatever rows and columns are read are merged, and unsupported ones are refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.lora import merge_adapter
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from support.adapters import PREFIX, adapter_tensors, write_adapter
from support.safetensor_files import from_stored, llama_tensors, write_llama

MODULE = "model.layers.0.mlp.down_proj"


@pytest.fixture
def base(tmp_path, rng):
    return open_source(write_llama(tmp_path / "base", llama_tensors(rng)))


def adapter(rng, module=MODULE):
    return adapter_tensors(rng, module, (256, 512))


def test_any_part_of_a_merged_tensor_equals_that_part_of_the_whole(base, tmp_path, rng):
    tensors = adapter(rng)
    a, b = tensors.values()
    source = merge_adapter(base, write_adapter(tmp_path / "a", tensors))
    name = f"{MODULE}.weight"
    merged, plain = source.tensors[name], base.tensors[name].read()
    whole = merged.read()
    expected = plain + 1.5 * (b.astype(np.float64) @ a)
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)
    for _ in range(5):
        rows, columns = (slice(*sorted(rng.integers(0, size, 2))) for size in plain.shape)
        np.testing.assert_array_equal(merged.read(rows, columns), whole[rows, columns])
        np.testing.assert_array_equal(merged.read_transposed(columns), whole[:, columns].T)
    assert measure(merged).largest == np.abs(whole).max()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(merged)).read(), whole)
    unchanged = [other for other in base.tensors if other != name]
    assert all(source.tensors[other] is base.tensors[other] for other in unchanged)


def test_an_adapter_of_a_wrapped_model_finds_the_names_of_the_base(base, tmp_path, rng):
    tensors = adapter(rng, module="model.language_model.layers.0.mlp.down_proj")
    source = merge_adapter(base, write_adapter(tmp_path / "a", tensors))
    assert source.tensors[f"{MODULE}.weight"].note == "LoRA merged"


@pytest.mark.parametrize("wrapper", ["module.{}", "_orig_mod.{}", "base_model.model._orig_mod.{}"])
def test_an_adapter_of_a_model_that_was_wrapped_for_training_is_merged(
    base, tmp_path, rng, wrapper
):
    tensors = adapter(rng)
    expected = merge_adapter(base, write_adapter(tmp_path / "a", tensors))
    wrapped = {
        wrapper.format(name.removeprefix(PREFIX) if PREFIX in wrapper else name): value
        for name, value in tensors.items()
    }
    source = merge_adapter(base, write_adapter(tmp_path / "b", wrapped))
    name = f"{MODULE}.weight"
    np.testing.assert_array_equal(source.tensors[name].read(), expected.tensors[name].read())


def test_an_adapter_with_pytorch_weights_is_read(base, tmp_path, rng):
    import torch

    tensors = adapter(rng)
    folder = write_adapter(tmp_path / "a", tensors)
    expected = merge_adapter(base, folder).tensors[f"{MODULE}.weight"].read()
    (folder / "adapter_model.safetensors").unlink()
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save(state, folder / "adapter_model.bin")
    result = merge_adapter(base, folder).tensors[f"{MODULE}.weight"].read()
    np.testing.assert_array_equal(result, expected)


def test_a_replaced_tensor_is_taken_from_the_adapter(base, tmp_path, rng):
    norm = rng.standard_normal(256, np.float32)
    tensors = {f"{PREFIX}model.norm.modules_to_save.default.weight": norm}
    source = merge_adapter(base, write_adapter(tmp_path / "a", tensors))
    np.testing.assert_array_equal(source.tensors["model.norm.weight"].read()[0], norm)
    assert source.notes == ("LoRA adapter of rank 4: 1 tensor changed",)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "LOHA"}, "found LOHA"),
        ({"peft_type": None}, "found None|peft_type LORA"),
        ({"use_qalora": True}, "use_qalora"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "found pissa_niter_4"),
        ({"r": 8}, r"expected 8, found 4"),
        ({"rank_pattern": {"down_proj": 2}}, r"expected 2, found 4"),
        ({"rank_pattern": {"(": 2}}, "rank_pattern"),
        ({"r": 0}, "impossible r"),
        ({"lora_alpha": "much"}, "impossible lora_alpha"),
        ({"use_dora": True}, "magnitude"),
    ],
)
def test_a_configuration_that_cannot_be_merged_is_refused(base, config, words, tmp_path, rng):
    tensors = adapter(rng)
    merge_adapter(base, write_adapter(tmp_path / "good", tensors))
    with pytest.raises(SourceError, match=words):
        merge_adapter(base, write_adapter(tmp_path / "bad", tensors, **config))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({f"{PREFIX}{MODULE}.lora_diag": (4,)}, "lora_diag"),
        ({f"{PREFIX}{MODULE}.lora_magnitude_vector": (256,)}, "magnitude_vector"),
        ({f"{PREFIX}model.embed_tokens.token_adapter.delta": (2, 256)}, "token_adapter"),
        ({f"{PREFIX}model.layers.9.mlp.down_proj.weight": (256, 512)}, "layers.9.mlp.down_proj"),
        ({f"{PREFIX}{MODULE}.lora_B.bias": (256,)}, "down_proj.bias"),
        ({f"{PREFIX}{MODULE}.lora_B.weight": (255, 4)}, "does not fit the checkpoint"),
        ({f"{PREFIX}{MODULE}.lora_B.weight": None}, "found A"),
    ],
)
def test_a_tensor_that_cannot_be_merged_is_refused_by_name(base, change, words, tmp_path, rng):
    tensors = adapter(rng)
    merge_adapter(base, write_adapter(tmp_path / "good", tensors))
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = rng.standard_normal(shape, np.float32)
    with pytest.raises(SourceError, match=words):
        merge_adapter(base, write_adapter(tmp_path / "bad", tensors))


def test_changing_only_the_embedding_of_a_tied_head_is_refused(tmp_path, rng):
    tensors = llama_tensors(rng)
    embedding = from_stored(tensors["model.embed_tokens.weight"])
    replaced = {f"{PREFIX}model.embed_tokens.weight": embedding + np.float32(1)}
    untied = open_source(write_llama(tmp_path / "untied", tensors))
    merge_adapter(untied, write_adapter(tmp_path / "one", replaced))
    del tensors["lm_head.weight"]
    tied = open_source(write_llama(tmp_path / "tied", tensors))
    with pytest.raises(SourceError, match="but not the head"):
        merge_adapter(tied, tmp_path / "one")
    both = write_adapter(tmp_path / "both", replaced, ensure_weight_tying=True)
    assert "lm_head.weight" not in merge_adapter(tied, both).tensors


def test_a_folder_without_an_adapter_is_refused(base, tmp_path, rng):
    with pytest.raises(SourceError, match=r"adapter_config\.json"):
        merge_adapter(base, tmp_path / "nowhere")
    folder = write_adapter(tmp_path / "a", adapter(rng))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(SourceError, match="no weights"):
        merge_adapter(base, folder)
