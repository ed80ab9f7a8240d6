"""Hunyuan A13B: Hunyuan's attention, and mixtures with a shared expert in all layers."""

from __future__ import annotations

from collections.abc import Callable

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_stretched_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config


def of_all_layers(*keys: str) -> Callable[[Config], int]:
    """Rule: a number that may be stated for each layer, if it is the same for all.

    Args:
        keys: Names of the key, of which the first that is stated is read.

    Raises:
        SourceError: The layers have different numbers.
    """

    def rule(config: Config) -> int:
        key = next((key for key in keys if config.get(key) is not None), keys[0])
        stated = config.get(key)
        values = set(map(str, stated)) if isinstance(stated, list) else {str(stated)}
        if len(values) != 1 or not values.copy().pop().isdecimal():
            raise config.fault(key, "one positive number for all layers", stated)
        return int(values.pop())

    return rule


def expert_width(config: Config) -> int:
    """Rule: the width of an expert, which is that of the dense network of other models.

    Raises:
        SourceError: The configuration states another width for the experts.
    """
    width = config.integer("intermediate_size")
    if config.get("moe_intermediate_size") is not None:
        stated = of_all_layers("moe_intermediate_size")(config)
        if stated != width:
            raise config.fault("moe_intermediate_size", f"{width}, as intermediate_size", stated)
    return width


def shared_width(config: Config) -> int:
    """Rule: the width of the shared expert, of which there is one.

    Raises:
        SourceError: The configuration states another number of shared experts.
    """
    if config.get("num_shared_expert") is not None:
        count = of_all_layers("num_shared_expert")(config)
        if count != 1:
            raise config.fault("num_shared_expert", "1", count)
    return config.integer("intermediate_size")


HUNYUAN_V1_MOE = ArchitectureRule(
    name="hunyuan_v1_moe",
    classes=("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "moe_topk": 1,
        "num_attention_heads": 32,
        "num_experts": 1,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 290943,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_after_rope": True},
    experts={
        "num_experts": of_all_layers("num_experts", "num_local_experts"),
        "num_experts_per_token": of_all_layers("moe_topk", "num_experts_per_tok"),
        "expert_format": "mixtral",
        "expert_intermediate_size": expert_width,
        "shared_expert_intermediate_size": shared_width,
        "normalize_weights": True,
    },
    rope=read_stretched_rope,
    stated_by_tensors=("use_qk_norm",),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        tensors.norm("self_attn.query_layernorm", "head"),
        tensors.norm("self_attn.key_layernorm", "head"),
        tensors.router("mlp.gate.wg"),
        *tensors.QWEN_EXPERTS,
        tensors.projection("mlp.shared_mlp.gate_proj", "shared", "hidden"),
        tensors.projection("mlp.shared_mlp.up_proj", "shared", "hidden"),
        tensors.projection("mlp.shared_mlp.down_proj", "hidden", "shared"),
    ),
)
