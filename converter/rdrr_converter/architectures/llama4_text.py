"""Llama 4 (text): experts beside a shared one, attention in chunks, and layers without rope.

The routing weight of an expert is the sigmoid of its logit and multiplies its input. Layers with
rope attend within chunks; those without attend to all and scale their queries by the position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from rdrr_manifests.graph.names import EXPERT_NAMES
from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures._rope import interleaved, read_rope_of_some_layers
from rdrr_converter.architectures.base import ArchitectureRule, Arrangement, Keys, StackRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_but, chunked_with_rope

EXPERTS = "model.layers.{layer}.feed_forward.experts"
GATE, UP, DOWN = tensors.QWEN_EXPERTS
SHARED = tensors.SHARED_EXPERT[:3]
TRANSPOSED = Arrangement(transposed=True, written=True)
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def sparse_layers(config: Config) -> tuple[int, ...]:
    """Rule: the layers in `moe_layers`, else every `interleave_moe_layer_step`-th.

    Raises:
        SourceError: A value is not what it should be.
    """
    stated, step = config.get("moe_layers"), config.integer("interleave_moe_layer_step")
    if stated is None:
        # Counted from 1, the layers whose number is a multiple of the step.
        return tuple(range(step - 1, config.layers, step))
    if not isinstance(stated, list) or not all(type(layer) is int for layer in stated):
        raise config.fault("moe_layers", "a list of layers", stated)
    return tuple(sorted(layer for layer in set(stated) if 0 <= layer < config.layers))


def temperature(key: str) -> Callable[[Config], float | None]:
    """Return a rule for a parameter of the scale of queries; None if there is no such scale."""

    def rule(config: Config) -> float | None:
        value = config.number(key)
        return value if config.get("attn_temperature_tuning") else None

    return rule


def _has_experts(layer: int, names: Collection[str]) -> bool:
    return any(f"model.layers.{layer}.{experts.router}.weight" in names for experts in EXPERT_NAMES)


def exported(config: Keys, manifest: Manifest, names: Collection[str]) -> Keys:
    """Return the keys for chunks, queries and the widths of layers."""
    attention, sizes, moe = manifest.inference.attention, manifest.architecture, manifest.moe_config
    width = None if moe is None else moe.expert_intermediate_size
    layers = range(sizes.num_layers)
    return config | {
        "attention_chunk_size": attention.attention_chunk_size,
        "attn_scale": attention.temperature_scale or 1.0,
        "attn_temperature_tuning": attention.temperature_scale is not None,
        "floor_scale": attention.temperature_length or 1,
        "intermediate_size": width or sizes.intermediate_size,
        "intermediate_size_mlp": sizes.intermediate_size,
        "interleave_moe_layer_step": 1,
        "moe_layers": [layer for layer in layers if _has_experts(layer, names)],
        "use_qk_norm": attention.query_key_unit_norm,
    }


LLAMA4_TEXT = ArchitectureRule(
    name="llama4_text",
    classes=("Llama4ForCausalLM", "Llama4ForConditionalGeneration", "Llama4TextModel"),
    model_types=("llama4",),
    defaults={
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 131072,
        "no_rope_layer_interval": 4,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "use_qk_norm": True,
        "vocab_size": 202048,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "attention_chunk_size": read.window("attention_chunk_size"),
        "query_key_unit_norm": read.flag("use_qk_norm"),
        "temperature_scale": temperature("attn_scale"),
        "temperature_length": temperature("floor_scale"),
        "temperature_without_rope": True,
    },
    experts={
        **MIXTURE_KEYS,
        "num_experts": read.integer("num_local_experts"),
        "expert_intermediate_size": read.integer("intermediate_size"),
        "shared_expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": False,
        "score_function": "sigmoid",
        "weights_scale_inputs": True,
    },
    rope=interleaved(read_rope_of_some_layers),
    layer_types=chunked_with_rope,
    exported=exported,
    sizes={"intermediate_size": read.integer("intermediate_size_mlp")},
    prefixes=("model.", "language_model.model.", ""),
    other_parts=(r"(model\.)?(vision_model|multi_modal_projector)\..*",),
    names=tensors.layer_names(
        "model.layers.{layer}",
        {
            "mlp.router": "feed_forward.router",
            **{f"mlp.{part}": f"feed_forward.{part}" for part in PROJECTIONS},
            **{
                f"mlp.shared_expert.{part}": f"feed_forward.shared_expert.{part}"
                for part in PROJECTIONS
            },
        },
    ),
    stacks=(
        StackRule(f"{EXPERTS}.gate_up_proj", (GATE.name, UP.name), arrangement=TRANSPOSED),
        StackRule(f"{EXPERTS}.down_proj", (DOWN.name,), arrangement=TRANSPOSED),
        *tensors.gguf_experts(tensors.QWEN_EXPERTS),
    ),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.in_layers(all_but(sparse_layers), *tensors.FEED_FORWARD),
        *tensors.in_layers(
            sparse_layers, tensors.router("mlp.router"), *tensors.QWEN_EXPERTS, *SHARED
        ),
    ),
)
