"""GLM 4.7 Flash: latent attention like that of DeepSeek V3, and mixtures with sigmoid scores."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._latent import ATTENTION, SIZES, TENSORS
from rdrr_converter.architectures._mixtures import (
    SELECTION_BIAS,
    SIGMOID_EXPERTS,
    feed_forwards,
    stated_sparse_layers,
)
from rdrr_converter.architectures._rope import interleaved_if, read_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config


def sparse_layers(config: Config) -> tuple[int, ...]:
    """Rule: the layers that `mlp_layer_types` calls sparse, else all but the first, have experts.

    Raises:
        SourceError: It is no list with the type of each layer, or `first_k_dense_replace` says
            something else.
    """
    stated = stated_sparse_layers(config)
    sparse = tuple(range(1, config.layers)) if stated is None else stated
    first = config.get("first_k_dense_replace")  # transformers does not read it
    if first is not None and sparse != tuple(range(first, config.layers)):
        raise config.fault("first_k_dense_replace", "the layers of mlp_layer_types", first)
    return sparse


GLM4_MOE_LITE = ArchitectureRule(
    name="glm4_moe_lite",
    classes=("Glm4MoeLiteForCausalLM", "Glm4MoeLiteModel"),
    defaults={
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "kv_lora_rank": 512,
        "max_position_embeddings": 202752,
        "mlp_layer_types": None,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 20,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 47,
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_interleave": True,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.8,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "v_head_dim": 256,
        "vocab_size": 154880,
    },
    sizes=SIZES,
    attention=ATTENTION,
    experts=SIGMOID_EXPERTS,
    rope=interleaved_if("rope_interleave", read_rope),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    extra_layers="num_nextn_predict_layers",
    has_draft_head=True,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *TENSORS,
        *feed_forwards(SELECTION_BIAS, sparse=sparse_layers),
    ),
)
