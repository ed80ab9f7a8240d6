"""Models that a configuration describes: the tensors that its rule requires, and known families.

The tensors follow from the converter's description of the architecture, so a shape is nothing but
a published configuration, with fewer layers where the whole model would be too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rdrr_converter.architectures import find_architecture, read_block
from rdrr_converter.reading.expected_tensors import expected_tensors
from rdrr_converter.reading.matching import RequiredTensor, required_tensors
from rdrr_converter.reading.model import read_experts, read_sizes
from rdrr_converter.reading.tower import tower_shapes
from rdrr_manifests.models import Vision

_CENTRES = {"linear_attn.norm.weight": 1.0, ".A_log": 1.0, ".layer_scalar": 1.0, ".dt_bias": 1.0}
"""Means of weights that are not centred like those of their role, by the end of the name."""


@dataclass(frozen=True)
class ConfiguredShape:
    """A model that its configuration describes.

    Attributes:
        values: Content of `config.json`, without what all shapes share; of its `text_config` for a
            model that sees.
        tower: Its `vision_config`; None for models of text.
        norm_offset: Whether norms multiply by 1 + weight instead of by the weight.
        scales_keys: Whether the norms of keys have weights around head_dim^-0.5, where attention
            does not scale its scores. Weights around 1 give scores of a standard deviation of
            head_dim^0.5, so that the softmax amplifies any rounding to half of the logits.
    """

    values: Mapping[str, Any]
    tower: Mapping[str, Any] | None = field(default=None, kw_only=True)
    norm_offset: bool = field(default=False, kw_only=True)
    scales_keys: bool = field(default=False, kw_only=True)

    @property
    def vocab(self) -> int:
        """Return the size of the vocabulary."""
        return int(self.values["vocab_size"])

    def config(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        shared = {"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
        config = shared | dict(self.values)
        if self.tower is None:
            return config
        names = ("architectures", "model_type", "tie_word_embeddings")
        whole = {name: config[name] for name in names}
        return {**whole, "text_config": config, "vision_config": dict(self.tower)}

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of every tensor, in the order of the model."""
        for tensor in self._required.values():
            yield tensor.name, tensor.shape
        if not self.values["tie_word_embeddings"]:
            yield "lm_head.weight", self._required["model.embed_tokens.weight"].shape
        for tensor in self._of_tower.values():
            yield tensor.name, tensor.shape

    def centre(self, name: str, dims: tuple[int, ...]) -> float:
        """Return the mean of a tensor's weights."""
        if self.scales_keys and name.endswith("k_norm.weight"):
            return float(dims[0] ** -0.5)
        for ending, centre in _CENTRES.items():
            if name.endswith(ending):
                return centre
        tensor = self._required.get(name) or self._of_tower.get(name)
        is_norm = tensor is not None and tensor.role == "norm" and name.endswith("weight")
        return 1.0 if is_norm and not self.norm_offset else 0.0

    @cached_property
    def _required(self) -> dict[str, RequiredTensor]:
        rule = find_architecture(self.values, None, "config.json")
        config = rule.config(self.values, "config.json")
        sizes, experts = read_sizes(rule, config), read_experts(rule, config)
        return {tensor.name: tensor for tensor in required_tensors(rule, config, sizes, experts)}

    @cached_property
    def _of_tower(self) -> dict[str, RequiredTensor]:
        """The tensors of the tower, by the names of packages behind the prefix of checkpoints."""
        rule = find_architecture(self.values, None, "config.json").tower
        if self.tower is None or rule is None:
            return {}
        config = rule.config(self.tower, "config.json")
        block = Vision.model_validate(read_block(rule.sizes, config))
        shapes, tensors = tower_shapes(config, block), dict[str, RequiredTensor]()
        for expected in expected_tensors(rule, config, block.num_layers, None):
            name = f"model.{expected.fill(expected.rule.name)}"
            shape = shapes.shape(expected.rule, expected.layer)
            tensors[name] = RequiredTensor(name, expected.rule.role, shape)
        return tensors


_LINEAR, _FULL, _SLIDING = "linear_attention", "full_attention", "sliding_attention"


def qwen3_5(layers: int, **sizes: Any) -> ConfiguredShape:
    """Return a dense Qwen 3.5, in which every fourth layer has full attention."""
    return ConfiguredShape(
        {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "attn_output_gate": True,
            "head_dim": 256,
            "hidden_act": "silu",
            "layer_types": [_LINEAR if (at + 1) % 4 else _FULL for at in range(layers)],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 32768,
            "num_hidden_layers": layers,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000000.0,
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
            **sizes,
        },
        norm_offset=True,
    )


def qwen3_vl(layers: int, tower: Mapping[str, Any], **sizes: Any) -> ConfiguredShape:
    """Return a Qwen3-VL with the whole tower of a size."""
    return ConfiguredShape(
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "head_dim": 128,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "num_hidden_layers": layers,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            "vocab_size": 151936,
            **sizes,
        },
        tower={
            "model_type": "qwen3_vl",
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **tower,
        },
    )


def gpt_oss(layers: int, **sizes: Any) -> ConfiguredShape:
    """Return a gpt-oss, in which windows and full attention alternate."""
    return ConfiguredShape(
        {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "attention_bias": True,
            "head_dim": 64,
            "hidden_act": "silu",
            "layer_types": [_FULL if at % 2 else _SLIDING for at in range(layers)],
            "max_position_embeddings": 131072,
            "num_experts_per_tok": 4,
            "num_hidden_layers": layers,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000.0,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": False,
            **sizes,
        }
    )


def gemma4(layers: int, shared: int, **sizes: Any) -> ConfiguredShape:
    """Return a small Gemma 4, in which every fifth layer has full attention.

    Args:
        layers: Number of layers.
        shared: Number of last layers that read the keys and values of an earlier one.
        sizes: Further keys of the configuration.
    """
    return ConfiguredShape(
        {
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "final_logit_softcapping": 30.0,
            "global_head_dim": 512,
            "head_dim": 256,
            "layer_types": [_SLIDING if (at + 1) % 5 else _FULL for at in range(layers)],
            "max_position_embeddings": 131072,
            "num_hidden_layers": layers,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": shared,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {
                "full_attention": {
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1000000.0,
                    "rope_type": "proportional",
                },
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "sliding_window": 512,
            "tie_word_embeddings": True,
            "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": sizes["vocab_size"],
            **sizes,
        },
        scales_keys=True,
    )


def deepseek_v2(layers: int, **sizes: Any) -> ConfiguredShape:
    """Return a DeepSeek V2 whose first layer is dense; its queries are not compressed by default.

    llama.cpp expects compressed queries unless there are 27 layers.
    """
    return ConfiguredShape(
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "attention_bias": False,
            "first_k_dense_replace": 1,
            "hidden_act": "silu",
            "kv_lora_rank": 512,
            "max_position_embeddings": 163840,
            "n_group": 1,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_experts_per_tok": 6,
            "num_hidden_layers": layers,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10000.0,
            "routed_scaling_factor": 1.0,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "topk_method": "greedy",
            "v_head_dim": 128,
            **sizes,
        }
    )


def bert(layers: int, **sizes: int) -> ConfiguredShape:
    """Return a BERT of these sizes."""
    values = {"architectures": ["BertModel"], "model_type": "bert", "tie_word_embeddings": True}
    return ConfiguredShape({**values, "num_hidden_layers": layers, **sizes})
