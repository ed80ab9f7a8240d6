"""Rules for the tensors that most decoder-only transformers share, used by architecture files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from rdrr_converter.architectures.base import StackRule, TensorRule
from rdrr_converter.architectures.config import Config, Flag, flag

ATTENTION_BIAS = flag("attention_bias")

EMBEDDING = TensorRule("model.embed_tokens.weight", "embedding", ("vocab", "hidden"))
FINAL_NORM = TensorRule("model.norm.weight", "norm", ("hidden",))
# A checkpoint without a head is tied; `rdrr_converter.reading.model` decides that.
HEAD = TensorRule(
    "lm_head.weight",
    "lm_head",
    ("vocab", "hidden"),
    required=False,
    aliases=("language_model.lm_head.weight",),
)


def of_model(*layers: TensorRule) -> tuple[TensorRule, ...]:
    """Return the rules of a model: its embedding, those given, the final norm and the head."""
    return (EMBEDDING, *layers, FINAL_NORM, HEAD)


def norm(part: str, *size: str, required: bool | Callable[[Config], bool] = True) -> TensorRule:
    """Return the rule for a norm's weight in each layer, [hidden] if no size is given."""
    return TensorRule(
        f"model.layers.{{layer}}.{part}.weight", "norm", size or ("hidden",), required
    )


def projection(part: str, outputs: str, inputs: str) -> TensorRule:
    """Return the rule for a matmul weight [outputs, inputs] in each layer."""
    return TensorRule(f"model.layers.{{layer}}.{part}.weight", "matmul", (outputs, inputs))


def bias(part: str, size: str, required: bool | Callable[[Config], bool]) -> TensorRule:
    """Return the rule for a projection's bias in each layer."""
    return TensorRule(f"model.layers.{{layer}}.{part}.bias", "bias", (size,), required)


ATTENTION = (
    projection("self_attn.q_proj", "q", "hidden"),
    projection("self_attn.k_proj", "kv", "hidden"),
    projection("self_attn.v_proj", "kv", "hidden"),
    projection("self_attn.o_proj", "hidden", "q"),
)
QUERY_KEY_NORMS = (norm("self_attn.q_norm", "head"), norm("self_attn.k_norm", "head"))
QUERY_KEY_NORMS_PER_HEAD = (
    norm("self_attn.q_norm", "heads", "head"),
    norm("self_attn.k_norm", "kv_heads", "head"),
)
QUERY_KEY_NORMS_OF_ALL_HEADS = (norm("self_attn.q_norm", "q"), norm("self_attn.k_norm", "kv"))
FEED_FORWARD = (
    projection("mlp.gate_proj", "inner", "hidden"),
    projection("mlp.up_proj", "inner", "hidden"),
    projection("mlp.down_proj", "hidden", "inner"),
)
STACKED_ATTENTION = StackRule(
    "model.layers.{layer}.self_attn.qkv_proj.weight", tuple(row.name for row in ATTENTION[:3])
)
STACKED_GATE_UP = StackRule(
    "model.layers.{layer}.mlp.gate_up_proj.weight", tuple(row.name for row in FEED_FORWARD[:2])
)
UNGATED_FEED_FORWARD = FEED_FORWARD[1:]
FINAL_NORM_BIAS = TensorRule("model.norm.bias", "bias", ("hidden",))
BIASED_END = (FINAL_NORM, FINAL_NORM_BIAS, HEAD)
HEAD_BIAS = TensorRule("lm_head.bias", "bias", ("vocab",))
POSITIONS = TensorRule(
    "model.embed_positions.weight", "position_embedding", ("positions", "hidden")
)
QKV_PROJECTIONS = "model.layers.{layer}.self_attn.qkv_proj"
STACKED_BIASES = StackRule(
    f"{QKV_PROJECTIONS}.bias",
    tuple(row.name.replace(".weight", ".bias") for row in ATTENTION[:3]),
)
GGUF_STACKS = tuple(
    replace(stack, is_published=False) for stack in (STACKED_ATTENTION, STACKED_BIASES)
)
"""Queries, keys and values as llama.cpp stores them for models that it read early."""

TWO_NORMS = (norm("input_layernorm"), norm("post_attention_layernorm"))
POST_NORMS = (norm("post_attention_layernorm"), norm("post_feedforward_layernorm"))
FOUR_NORMS = (
    *TWO_NORMS,
    norm("pre_feedforward_layernorm"),
    norm("post_feedforward_layernorm"),
)


def attention_biases(
    required: bool | Callable[[Config], bool] = ATTENTION_BIAS,
    output: bool | Callable[[Config], bool] | None = None,
) -> tuple[TensorRule, ...]:
    """Return the rules for the biases of the four projections.

    Args:
        required: See `TensorRule`.
        output: The same for the output projection, where it differs.
    """
    return (
        bias("self_attn.q_proj", "q", required),
        bias("self_attn.k_proj", "kv", required),
        bias("self_attn.v_proj", "kv", required),
        bias("self_attn.o_proj", "hidden", required if output is None else output),
    )


def feed_forward_biases(required: bool | Callable[[Config], bool]) -> tuple[TensorRule, ...]:
    """Return the rules for the biases of gate, up and down."""
    return (
        bias("mlp.gate_proj", "inner", required),
        bias("mlp.up_proj", "inner", required),
        bias("mlp.down_proj", "hidden", required),
    )


def ungated_biases(required: bool | Callable[[Config], bool]) -> tuple[TensorRule, ...]:
    """Return the rules for the biases of up and down, where there is no gate."""
    return feed_forward_biases(required)[1:]


def norm_biases(
    *parts: str, required: bool | Callable[[Config], bool] = True, size: str = "hidden"
) -> tuple[TensorRule, ...]:
    """Return the rules for the biases of norms in each layer."""
    return tuple(bias(part, size, required) for part in parts)


TWO_BIASED_NORMS = (
    *TWO_NORMS,
    *norm_biases("input_layernorm", "post_attention_layernorm"),
)


def layer_names(layer: str, parts: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a layer's modules for `ArchitectureRule.names`.

    Args:
        layer: Name of a layer in checkpoints of transformers, with `{layer}` for its index.
        parts: Names of modules in the layer, by their canonical names there.
    """
    return {f"model.layers.{{layer}}.{ours}": f"{layer}.{theirs}" for ours, theirs in parts.items()}


def in_layers(
    layers: Callable[[Config], Collection[int]], *rows: TensorRule
) -> tuple[TensorRule, ...]:
    """Restrict rules to some layers."""
    return tuple(replace(row, layers=layers) for row in rows)


def required_if(flag: Flag, *rows: TensorRule) -> tuple[TensorRule, ...]:
    """Make tensors required only if a configuration sets a flag."""
    return tuple(replace(row, required=flag) for row in rows)


def router(part: str, size: str = "experts", *, aliases: tuple[str, ...] = ()) -> TensorRule:
    """Return the rule for a router or gate matrix [size, hidden] in each layer."""
    names = [f"model.layers.{{layer}}.{name}.weight" for name in (part, *aliases)]
    return TensorRule(names[0], "router", (size, "hidden"), aliases=tuple(names[1:]))


def expert_projections(part: str, gate: str, up: str, down: str) -> tuple[TensorRule, ...]:
    """Return the rules for the three matrices of every expert; `part` names the experts."""
    stem = f"model.layers.{{layer}}.{part}.{{expert}}"
    return (
        TensorRule(f"{stem}.{gate}.weight", "expert", ("width", "hidden")),
        TensorRule(f"{stem}.{up}.weight", "expert", ("width", "hidden")),
        TensorRule(f"{stem}.{down}.weight", "expert", ("hidden", "width")),
    )


def gguf_experts(
    rows: Iterable[TensorRule], *, is_published: bool = False
) -> tuple[StackRule, ...]:
    """Return a stack for each matrix of the experts, as a GGUF has them."""
    return tuple(
        StackRule(row.name.replace(".{expert}", ""), (row.name,), is_published=is_published)
        for row in rows
    )


def stacked_experts(
    gate: TensorRule, up: TensorRule, down: TensorRule, *, part: str = "mlp.experts"
) -> tuple[StackRule, ...]:
    """Return the stacks of experts: two per layer in transformers 5, two or three in a GGUF.

    `part` names the experts in transformers.
    """
    stem = f"model.layers.{{layer}}.{part}"
    return (
        StackRule(f"{stem}.gate_up_proj", (gate.name, up.name)),
        StackRule(f"{stem}.gate_up_proj.weight", (gate.name, up.name), is_published=False),
        StackRule(f"{stem}.down_proj", (down.name,)),
        *gguf_experts((gate, up, down), is_published=True),
    )


QWEN_EXPERTS = expert_projections("mlp.experts", "gate_proj", "up_proj", "down_proj")
SHARED_EXPERT = (
    projection("mlp.shared_expert.gate_proj", "shared", "hidden"),
    projection("mlp.shared_expert.up_proj", "shared", "hidden"),
    projection("mlp.shared_expert.down_proj", "hidden", "shared"),
    router("mlp.shared_expert_gate", "one"),
)
