"""Multimodal models around a text model: their keys, sizes and text models are transformers'."""

from __future__ import annotations

from typing import Any

import pytest
from rdrr_converter.architectures import find_architecture, find_by_name
from rdrr_converter.architectures._ignored_keys import is_ignored
from rdrr_converter.architectures._wrappers import SIZES, WRAPPERS

OF_THEIR_CLASS = ("gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm46v", "glm4v", "glm4v_moe")
OF_THEIR_CLASS += ("llama4", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe")
OF_THEIR_CLASS += ("qwen3_vl", "qwen3_vl_moe")
"""Multimodal models whose text model has an architecture file that names their class."""

KINDS = sorted({*OF_THEIR_CLASS, *(wrapper.model_type for wrapper in WRAPPERS.values())})
READ = ("hidden_size", "tie_word_embeddings", "vocab_size")
"""Keys that are read from beside `text_config` where it has none of that name."""

PUBLISHED = {
    "gemma3n": ("audio_soft_tokens_per_image", "vision_soft_tokens_per_image", "boa_token_id"),
    "gemma4": ("vision_soft_tokens_per_image", "eoa_token_id", "audio_config"),
    "qwen3_5": ("language_model_only",),
}
"""Keys of published files that are not, or not by default, in the classes."""


def class_of(kind: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_the_class_beside_the_text_model_is_read_or_ignored(kind):
    from transformers import PreTrainedConfig

    whole = class_of(kind)().to_dict()
    text = whole["text_config"]
    keys = set(whole) - set(PreTrainedConfig().to_dict()) - set(text) - {*READ}
    merged = {**whole, **text}
    assert keys > {"text_config"}
    assert [key for key in keys if not is_ignored(key, whole[key], merged)] == []
    for key in PUBLISHED.get(kind, ()):
        assert is_ignored(key, 280, {**merged, key: 280})


def test_keys_within_the_text_model_and_unknown_ones_are_not_ignored():
    config = {"text_config": {"projector_bias": True}, "projector_bias": True}
    assert not is_ignored("projector_bias", True, config)
    assert is_ignored("projector_bias", True, {"text_config": {}, "projector_bias": True})
    assert not is_ignored("projector_bias", True, {"projector_bias": True})
    assert not is_ignored("sliding_window", 8, {"text_config": {}, "sliding_window": 8})


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_text_model_is_the_usual_one_of_the_class_or_the_stated_one(name):
    usual = class_of(WRAPPERS[name].model_type)().text_config.model_type
    found = find_architecture({"architectures": [name], "text_config": {}})
    assert found.name == find_by_name(usual).name
    stated = {"architectures": [name], "text_config": {"model_type": "qwen3"}}
    assert find_architecture(stated).name == "qwen3"
    by_type = {"model_type": WRAPPERS[name].model_type, "text_config": {"model_type": "qwen3"}}
    assert find_architecture(by_type).name == "qwen3"


def test_the_classes_are_those_of_transformers():
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = {
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[row.model_type] for row in WRAPPERS.values()
    }
    assert set(WRAPPERS) - {"KimiK25ForConditionalGeneration"} == known


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_that_a_text_configuration_omits_are_those_of_transformers(kind):
    """LLaVA 1.5 states the vocabulary of its Llama only."""
    theirs, wrapped = class_of(kind)(), {"text_config": {"model_type": kind}, "model_type": "llava"}
    rule = find_architecture(wrapped)
    config = rule.config({"vocab_size": 32064}, "config.json")
    assert config.integer("vocab_size") == 32064
    for key in SIZES[kind].keys() - {"vocab_size"}:
        assert config.get(key) == getattr(theirs, key), key
    assert find_by_name(kind).config({}, "config.json").get("num_hidden_layers") in (
        None,
        config.get("num_hidden_layers"),
    )
