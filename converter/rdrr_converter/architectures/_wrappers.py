"""Multimodal models whose text model is an architecture of its own: one row for each class.

Their configuration nests that of the text model as `text_config`, with a `model_type` of its own,
and its tensors have a prefix. So the same text model is read alone or within any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from rdrr_converter.architectures._siglip_vision import idefics_vision
from rdrr_converter.architectures.base import ArchitectureRule, Block
from rdrr_converter.architectures.config import Config


class Wrapper(NamedTuple):
    """A class of multimodal models.

    Attributes:
        model_type: Its `model_type`.
        text: `model_type` of the text model where `text_config` states none.
        attention: Fields of the text model's block `inference.attention` that differ within it.
        tower: Its vision tower, if that is of a known form.
    """

    model_type: str
    text: str
    attention: Block = MappingProxyType({})
    tower: ArchitectureRule | None = None


def causal_after_the_prompt(config: Config) -> bool:
    """Rule: tokens see only earlier ones.

    PaliGemma's configurations may state `use_bidirectional_attention`, which is about the prefix of
    images and their prompt. transformers takes only tokens of type 0 for one.
    """
    config.get("use_bidirectional_attention")
    return True


WRAPPERS: Mapping[str, Wrapper] = MappingProxyType(
    {
        "AyaVisionForConditionalGeneration": Wrapper("aya_vision", "cohere2"),
        "Cohere2VisionForConditionalGeneration": Wrapper("cohere2_vision", "cohere2"),
        "Idefics3ForConditionalGeneration": Wrapper(
            "idefics3", "llama", tower=idefics_vision("idefics3_vision")
        ),
        "InternVLForConditionalGeneration": Wrapper("internvl", "qwen2"),
        "KimiK25ForConditionalGeneration": Wrapper("kimi_k25", "deepseek_v3"),
        "Kimi_K25ForConditionalGeneration": Wrapper("kimi_k25", "deepseek_v3"),
        "Lfm2VlForConditionalGeneration": Wrapper("lfm2_vl", "lfm2"),
        "Lfm3VlForConditionalGeneration": Wrapper("lfm3_vl", "lfm3"),
        "LlavaForConditionalGeneration": Wrapper("llava", "llama"),
        "LlavaNextForConditionalGeneration": Wrapper("llava_next", "llama"),
        "LlavaOnevisionForConditionalGeneration": Wrapper("llava_onevision", "qwen2"),
        "PaliGemmaForConditionalGeneration": Wrapper(
            "paligemma", "gemma", {"causal": causal_after_the_prompt}
        ),
        "SmolVLMForConditionalGeneration": Wrapper(
            "smolvlm", "llama", tower=idefics_vision("smolvlm_vision")
        ),
    }
)

PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.text_model.",
)
OTHER_PARTS = (
    r"(model\.)?(vision_tower|vision_model|visual|audio_tower)\..*",
    r"(model\.)?(multi_modal_projector|mm_projector|connector)\..*",
    r"(model\.)?image_newline",
)

SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "gemma": {
            "head_dim": 256,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 16,
            "vocab_size": 256000,
        },
        "llama": {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 32000,
        },
        "mistral": {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 32000,
        },
        "qwen2": {
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 151936,
        },
    }
)
"""Sizes that `text_config` may omit, since they are the defaults of transformers.

Configurations of text models alone state them. LLaVA 1.5 states only the vocabulary.
"""

PARTS: frozenset[str] = frozenset(
    (
        "_pad_token_id",
        "adapter_layer_norm_eps",
        "alignment_intermediate_size",
        "downsample_factor",
        "downsample_ratio",
        "ignore_index",
        "image_grid_pinpoints",
        "image_seq_length",
        "language_model_only",
        "mm_tokens_per_image",
        "multimodal_projector_bias",
        "projection_dim",
        "projection_hidden_size",
        "projection_layer_norm_eps",
        "projector_bias",
        "projector_hidden_act",
        "projector_hidden_size",
        "projector_use_layernorm",
        "scale_factor",
        "spatial_merge_size",
        "use_image_newline_parameter",
        "use_unified_vision_chunk",
        "video_placeholder",
        "vision_aspect_ratio",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    )
)
"""Keys beside `text_config` that belong to other parts, or say that these are left out.

`tests/converter/architectures/test_wrappers.py` compares them with the classes of transformers.
"""

ENDINGS = ("_config", "_soft_tokens_per_image", "_token_id", "_token_index")
"""How further keys of this kind end: configurations of towers, and tokens that stand for them."""

_BY_TYPE = {wrapper.model_type: wrapper for wrapper in WRAPPERS.values()}


def wrapper_of(name: object) -> Wrapper | None:
    """Return the row of a class or `model_type`; None if it is not that of a wrapper."""
    return WRAPPERS.get(str(name)) or _BY_TYPE.get(str(name))


def within(wrapper: Wrapper, rule: ArchitectureRule) -> ArchitectureRule:
    """Return the architecture of a text model, read from within a wrapper."""
    return replace(
        rule,
        prefixes=tuple(dict.fromkeys((*rule.prefixes, *PREFIXES))),
        other_parts=(*rule.other_parts, *OTHER_PARTS),
        defaults={**SIZES.get(rule.name, {}), **rule.defaults},
        attention={**rule.attention, **wrapper.attention},
        output=_with_plain_logits(rule.output),
        tower=wrapper.tower,
    )


def _with_plain_logits(output: Block) -> Block:
    """Return the block without the factor on logits of Cohere and Granite.

    The classes of transformers that wrap a text model apply its head alone.
    """
    factor = output.get("logit_input_scale")
    if not callable(factor):
        return output

    def one(config: Config) -> float:
        factor(config)
        return 1.0

    return {**output, "logit_input_scale": one}


def is_of_another_part(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key stands beside `text_config` and belongs to another part of the model.

    Args:
        key: Name of the key.
        config: The configuration of the text model, with the keys around it.
    """
    nested = config.get("text_config")
    is_beside = isinstance(nested, Mapping) and key not in nested
    return is_beside and (key in PARTS or key.endswith(ENDINGS))
