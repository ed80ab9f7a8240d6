"""LFM2 with experts: the layers of LFM2, of which all but the first few have experts."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS, SELECTION_BIAS, layers_from
from rdrr_converter.architectures.base import StackRule
from rdrr_converter.architectures.layers import all_but
from rdrr_converter.architectures.lfm2 import GATED_BRANCHES, LAYER, LFM2, exported

_SOURCE = f"{LAYER}.feed_forward"
_NAMES = {
    "mlp.gate": "feed_forward.gate",
    "mlp.gate.e_score_correction_bias": "feed_forward.expert_bias",
    "mlp.experts.{expert}.gate_proj": "feed_forward.experts.{expert}.w1",
    "mlp.experts.{expert}.up_proj": "feed_forward.experts.{expert}.w3",
    "mlp.experts.{expert}.down_proj": "feed_forward.experts.{expert}.w2",
}


sparse_layers = layers_from("num_dense_layers")

LFM2_MOE = replace(
    LFM2,
    exported=exported,
    name="lfm2_moe",
    classes=("Lfm2MoeForCausalLM", "Lfm2MoeModel"),
    defaults={
        "conv_L_cache": 3,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "max_position_embeddings": 128000,
        "moe_intermediate_size": 1792,
        "norm_eps": 1e-5,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": True,
        "use_expert_bias": True,
        "vocab_size": 65536,
    },
    sizes={"linear_conv_kernel_dim": read.integer("conv_L_cache")},
    experts={
        **MIXTURE_KEYS,
        "num_experts": read.integer("num_experts"),
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "normalize_weights": read.flag("norm_topk_prob"),
        "score_function": "sigmoid",
        "routed_scaling_factor": read.number("routed_scaling_factor"),
    },
    names={**LFM2.names, **tensors.layer_names(LAYER, _NAMES)},
    stacks=(
        StackRule(
            f"{_SOURCE}.experts.gate_up_proj", tuple(row.name for row in tensors.QWEN_EXPERTS[:2])
        ),
        StackRule(f"{_SOURCE}.experts.down_proj", (tensors.QWEN_EXPERTS[2].name,)),
        *tensors.gguf_experts(tensors.QWEN_EXPERTS),
    ),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *GATED_BRANCHES,
        *tensors.in_layers(all_but(sparse_layers), *tensors.FEED_FORWARD),
        *tensors.in_layers(
            sparse_layers,
            tensors.router("mlp.gate"),
            *tensors.required_if(read.flag("use_expert_bias"), SELECTION_BIAS),
            *tensors.QWEN_EXPERTS,
        ),
    ),
)
