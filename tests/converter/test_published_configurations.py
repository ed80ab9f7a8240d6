"""Configurations as published, at true widths: every tensor fits, and rope is that of transformers.

They are in the older form that most checkpoints have: defaults left out, `rope_theta` and
`rope_scaling`. Only the number of layers is smaller here, and where noted the number of experts. No
weight is made. `support/published_sources.py` says which were compared with public text.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rdrr_converter.architectures import find_architecture
from rdrr_converter.reading import SourceModel, read_model
from rdrr_converter.sources import Source, SourceTensor
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.graph.ops import Attention, LatentAttention, Residual, Router
from rdrr_manifests.models import Manifest
from rdrr_runtime.phases.rope_tables import attention_factor, frequencies
from support.published import MORE_PUBLISHED
from support.published_hybrids import HYBRIDS
from support.published_mixtures import PUBLISHED_MIXTURES
from support.published_older import PUBLISHED_OLDER, WITHOUT_ROPE
from support.published_sources import COMPARED
from support.published_state_spaces import PUBLISHED_STATE_SPACES
from support.published_state_spaces import WITHOUT_ROPE as STATE_SPACES_WITHOUT_ROPE

SHORT = [round(1.0 + 0.02 * pair, 2) for pair in range(48)]
LONG = [round(1.0 + 1.25 * pair, 2) for pair in range(48)]
PHI35 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 3,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": LONG, "short_factor": SHORT, "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
_PUBLISHED: Mapping[str, dict[str, Any]] = {
    "SmolLM2-135M": SMOLLM2,
    "Phi-3.5-mini": PHI35,
    "Phi-4-mini": {
        **PHI35,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "gemma-2b": {
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "head_dim": 256,
        "hidden_act": "gelu",
        "hidden_activation": None,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "rope_theta": 10000.0,
        "vocab_size": 256000,
    },
    "granite-3.1-2b": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "logits_scaling": 8.0,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "DeepSeek-V2-Lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 2,
        "num_key_value_heads": 16,
        "pretraining_tp": 1,
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
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "DeepSeek-V3": DEEPSEEK_V3,
    "Kimi-K2-Instruct": {
        **DEEPSEEK_V3,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
        "model_type": "kimi_k2",
        "n_group": 1,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_hidden_layers": 2,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "beta_fast": 1.0, "factor": 32.0},
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "topk_group": 1,
        "vocab_size": 163840,
    },
    "GLM-4.7-Flash": {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "kv_lora_rank": 512,
        "max_position_embeddings": 202752,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 20,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 20,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 1.0,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.8,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
    "Hunyuan-A13B": {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "model_type": "hunyuan_v1_moe",
        "attention_bias": False,
        "cla_share_factor": 2,
        "group_limited_greedy": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "moe_drop_tokens": False,
        "moe_intermediate_size": [3072, 3072],
        "moe_layer_num_skipped": 0,
        "moe_random_routing_dropped_token": False,
        "moe_topk": [8, 8],
        "norm_type": "rms",
        "num_attention_heads": 32,
        "num_experts": 64,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "num_shared_expert": [1, 1],
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_cla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
        "vocab_size": 128167,
    },
    "GLM-4.5-Air": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "dots.llm1": {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 32768,
        "max_window_layers": 62,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 2,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "noaux_tc",
        "sliding_window": None,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "ERNIE-4.5-21B-A3B": {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_end_index": 27,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "num_attention_heads": 20,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
        "vocab_size": 103424,
    },
    "gemma-2-27b": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 128,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 4608,
        "intermediate_size": 36864,
        "num_attention_heads": 32,
        "num_hidden_layers": 3,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 144,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "vocab_size": 256000,
    },
    "Seed-OSS-36B": {
        "architectures": ["SeedOssForCausalLM"],
        "model_type": "seed_oss",
        "attention_bias": True,
        "attention_out_bias": False,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "max_position_embeddings": 524288,
        "mlp_bias": False,
        "num_attention_heads": 80,
        "num_hidden_layers": 2,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0,
        "tie_word_embeddings": False,
        "vocab_size": 155136,
    },
    "SmolLM3-3B": {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_position_embeddings": 65536,
        "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "num_attention_heads": 16,
        "num_hidden_layers": 5,
        "num_key_value_heads": 4,
        "rope_scaling": None,
        "rope_theta": 5000000.0,
        "vocab_size": 128256,
    },
    "Qwen1.5-MoE-A2.7B": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 2,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "qkv_bias": False,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 0,
        "sliding_window": None,
        "use_qk_norm": True,
    },
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "max_position_embeddings": 32768,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_local_experts": 8,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "vocab_size": 32000,
    },
    "Qwen2.5-7B with yarn": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "type": "yarn",
        },
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 1},
    },
    "Qwen2.5-VL-7B": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 128000,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "vision_config": {"depth": 1, "out_hidden_size": 3584},
        "vocab_size": 152064,
    },
    "Qwen3-VL-8B": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": {
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 2,
            "num_key_value_heads": 8,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            "vocab_size": 151936,
        },
        "tie_word_embeddings": False,
        "vision_config": {"depth": 1, "deepstack_visual_indexes": [0], "out_hidden_size": 4096},
    },
}

"""Llama, Qwen, Gemma and their relatives."""

PUBLISHED: Mapping[str, dict[str, Any]] = {
    **_PUBLISHED,
    **MORE_PUBLISHED,
    **PUBLISHED_MIXTURES,
    **PUBLISHED_OLDER,
    **PUBLISHED_STATE_SPACES,
}

NO_ROPE = (*WITHOUT_ROPE, *STATE_SPACES_WITHOUT_ROPE)
WITH_ROPE = [name for name in PUBLISHED if name not in NO_ROPE]

RENAMED = {"kimi_k2": "deepseek_v3"}
"""Types of models whose code is that of another type, which transformers does not know."""


def their_config(config: Mapping[str, Any]) -> Any:
    """Return the configuration in transformers, from a copy since transformers modifies it."""
    from transformers import AutoConfig

    values = copy.deepcopy({**config})
    kind = values.pop("model_type")
    return AutoConfig.for_model(RENAMED.get(kind, kind), **values)


def theirs(config: Mapping[str, Any]) -> Any:
    """Return the model in transformers on the meta device, without memory for its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(their_config(config))


def unread() -> Any:
    raise AssertionError("there are no weights here")


def read(config: Mapping[str, Any], model: Any) -> SourceModel:
    """Read the checkpoint that the model would be saved as, where a tied head has no tensor."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = {
        name: SourceTensor(name, tuple(tensor.shape), "BF16", "model.safetensors", unread)
        for name, tensor in state.items()
    }
    source = Source(Path("checkpoint"), "safetensors", config, tensors)
    return read_model(source, find_architecture(config))


def graph_of(model: SourceModel) -> Graph:
    manifest = Manifest(
        model_id="m",
        quantization="BF16",
        architecture=model.sizes,
        moe_config=model.moe,
        inference=model.inference,
        total_size=0,
        shards=(),
        tensors={},
    )
    return derive_graph(manifest, [tensor.name for tensor in model.tensors])


def test_only_configurations_that_are_here_are_said_to_be_compared():
    assert set(COMPARED) <= {*PUBLISHED, *HYBRIDS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_of_a_published_model_has_the_expected_shape(name):
    model = theirs(PUBLISHED[name])
    ours = read(PUBLISHED[name], model)
    shapes = {use.name: use.shape for use in graph_of(ours).weights()}
    assert shapes == {tensor.name: tensor.shape for tensor in ours.tensors}
    vision = [key for key in model.state_dict() if "vision" in key or "visual" in key]
    assert bool(vision) == any("left out" in note for note in ours.notes)


@pytest.mark.parametrize("name", WITH_ROPE)
def test_rope_of_a_published_model_has_the_frequencies_of_transformers(name):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense as hunyuan

    stretched = hunyuan.HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters

    config = PUBLISHED[name]
    graph = graph_of(read(config, theirs(config)))
    whole = their_config(config).get_text_config()
    stated = whole.rope_parameters
    layers = stated if "full_attention" in stated else {None: stated}
    assert len(graph.ropes) == len(layers)
    for spec, (layer_type, rope) in zip(
        sorted(graph.ropes, key=lambda spec: spec.theta),
        sorted(layers.items(), key=lambda item: item[1]["rope_theta"]),
        strict=True,
    ):
        # Some models have other heads in layers of another type.
        is_mixed = "gemma4" in whole.model_type
        sizes = whole.per_layer_config[layer_type] if is_mixed else whole
        heads = whole.num_attention_heads
        head_dim = getattr(sizes, "head_dim", None) or whole.hidden_size // heads
        for context in (2048, 65536):
            if rope["rope_type"] == "default":
                rotated = int(head_dim * (rope.get("partial_rotary_factor") or 1.0))
                steps = np.arange(0, rotated, 2) / rotated
                expected, factor = rope["rope_theta"] ** -steps, 1.0
            elif "alpha" in rope:
                found, factor = stretched(whole)
                expected = found.double().numpy()
            else:
                init = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
                found, factor = init(sizes, "cpu", seq_len=context, layer_type=layer_type)
                expected = found.double().numpy()
                # Phi-3.5 MoE states the factor itself.
                factor = rope.get("short_mscale" if context <= 4096 else "long_mscale", factor)
            np.testing.assert_allclose(frequencies(spec, context), expected, rtol=2e-6)
            assert attention_factor(spec, context) == pytest.approx(factor)


def test_the_peculiarities_of_published_models_are_in_their_graphs():
    def graph(name: str) -> Graph:
        return graph_of(read(PUBLISHED[name], theirs(PUBLISHED[name])))

    def attention(name: str) -> list[Attention]:
        return [op for op in graph(name).ops if isinstance(op, Attention)]

    assert {op.scale for op in attention("gemma-2-27b")} == {1 / 12}
    assert {op.scale for op in attention("granite-3.1-2b")} == {1 / 64}
    branches = [op for op in graph("granite-3.1-2b").ops if isinstance(op, Residual)]
    assert {op.scale for op in branches} == {0.22}
    assert [op.window for op in attention("gemma-2-27b")] == [4096, None, 4096]
    assert [op.window for op in attention("gemma-3-4b")] == [1024] * 5 + [None]
    plain = [op.layer for op in attention("SmolLM3-3B") if not op.q.endswith(".rope")]
    assert plain == [3]
    routers = [op for op in graph("Qwen3-30B-A3B").ops if isinstance(op, Router)]
    assert {(op.experts, op.top_k, op.normalize) for op in routers} == {(128, 8, True)}
    routers = [op for op in graph("dots.llm1").ops if isinstance(op, Router)]
    assert [(op.scoring, op.top_k, op.scale, op.groups) for op in routers] == [
        ("sigmoid", 6, 2.5, 1)
    ]
    latents = {
        name: next(op for op in graph(name).ops if isinstance(op, LatentAttention))
        for name in ("DeepSeek-V2-Lite", "DeepSeek-V3", "GLM-4.7-Flash")
    }
    scales = {name: op.scale for name, op in latents.items()}
    usual = (128 + 64) ** -0.5
    assert scales["DeepSeek-V2-Lite"] == pytest.approx(usual * (0.0707 * math.log(40) + 1) ** 2)
    assert scales["DeepSeek-V3"] == pytest.approx(usual * (0.1 * math.log(40) + 1) ** 2)
    assert scales["GLM-4.7-Flash"] == pytest.approx(256**-0.5)
    assert {op.eps for op in latents.values()} == {1e-6}
    assert graph("DeepSeek-V3").caches[0].elements == 512 + 64
    routers = [op for op in graph("DeepSeek-V3").ops if isinstance(op, Router)]
    assert [(op.groups, op.top_groups, op.group_score, op.scale) for op in routers] == [
        (8, 4, "top2", 2.5)
    ]
    assert graph("Phi-4-mini").ropes[0].rotary_dim == 96
    assert graph("Qwen2.5-7B with yarn").context == 131072
