"""The tensors that an architecture allows in a model, layer by layer, and the shapes they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from rdrr_manifests.models import Architecture, MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor that the architecture allows, for one layer and expert."""

    rule: TensorRule
    layer: int | None = None
    expert: int | None = None

    def fill(self, name: str) -> str:
        """Insert the indices of this layer and expert into a name."""
        return name.format(layer=self.layer, expert=self.expert)


def expected_tensors(
    rule: ArchitectureRule, config: Config, layers: int, moe: MoeConfig | None
) -> Iterator[ExpectedTensor]:
    """Yield every tensor that the model may have, in storage order."""
    per_layer = [row for row in rule.tensors if row.is_per_layer]
    first = rule.tensors.index(per_layer[0])
    yield from (ExpectedTensor(row) for row in rule.tensors[:first])
    owners = {row.name: frozenset(row.layers(config)) for row in per_layer if row.layers}
    for layer in range(layers):
        of_layer = [row for row in per_layer if layer in owners.get(row.name, (layer,))]
        for is_per_expert, rows in groupby(of_layer, lambda row: row.is_per_expert):
            numbers = range(moe.num_experts) if is_per_expert and moe else (None,)
            kept = list(rows)
            yield from (ExpectedTensor(row, layer, number) for number in numbers for row in kept)
    yield from (ExpectedTensor(row) for row in rule.tensors[first:] if not row.is_per_layer)


def is_required(rule: TensorRule, config: Config) -> bool:
    """Return whether a configuration requires a tensor."""
    return rule.required(config) if callable(rule.required) else rule.required


@dataclass(frozen=True)
class Shapes:
    """The sizes of the dimensions that rules name.

    Attributes:
        dimensions: Size of each dimension.
        of_layer: Returns the dimensions of a layer that differ from those; None if none do.
    """

    dimensions: Mapping[str, int]
    of_layer: Callable[[int], Mapping[str, int]] | None

    @staticmethod
    def of(
        rule: ArchitectureRule, config: Config, sizes: Architecture, moe: MoeConfig | None
    ) -> Shapes:
        """Return the sizes of a configuration."""
        more = {name: read(config) for name, read in rule.dimensions.items()}
        layer = None if rule.layer_dimensions is None else partial(rule.layer_dimensions, config)
        return Shapes(_dimensions(sizes, moe) | more, layer)

    def shape(self, rule: TensorRule, layer: int | None) -> tuple[int, ...]:
        """Return the shape of a tensor in a layer."""
        sizes = {} if self.of_layer is None or layer is None else self.of_layer(layer)
        return tuple(sizes.get(size) or self.dimensions[size] for size in rule.shape)


def _dimensions(sizes: Architecture, moe: MoeConfig | None) -> dict[str, int]:
    dimensions = {
        "vocab": sizes.vocab_size,
        "hidden": sizes.hidden_size,
        "inner": sizes.intermediate_size,
        "q": sizes.num_attention_heads * sizes.head_dim,
        "gated_q": 2 * sizes.num_attention_heads * sizes.head_dim,
        "kv": sizes.num_key_value_heads * sizes.head_dim,
        "head": sizes.head_dim,
        "heads": sizes.num_attention_heads,
        "kv_heads": sizes.num_key_value_heads,
        "one": 1,
    }
    if sizes.linear_num_value_heads is not None:
        dimensions |= linear_dimensions(sizes)
    if sizes.kv_lora_rank is not None:
        dimensions |= _latent_dimensions(sizes, sizes.kv_lora_rank)
    if moe is not None:
        width = moe.expert_intermediate_size or sizes.intermediate_size
        shared = moe.shared_expert_intermediate_size or width
        dimensions |= {"experts": moe.num_experts, "width": width, "shared": shared}
    return dimensions


def linear_dimensions(sizes: Architecture) -> dict[str, int]:
    """Return the dimensions of linear attention."""
    heads, key_heads = sizes.linear_num_value_heads or 0, sizes.linear_num_key_heads or 0
    value_dim, key_dim = sizes.linear_value_head_dim or 0, sizes.linear_key_head_dim or 0
    return {
        "linear_heads": heads,
        "linear_heads_per_key": heads // max(key_heads, 1),
        "linear_key_heads": key_heads,
        "linear_key_head": key_dim,
        "linear_v_per_key": heads * value_dim // max(key_heads, 1),
        "linear_head": value_dim,
        "linear_v": heads * value_dim,
        "linear_qkv": 2 * key_heads * key_dim + heads * value_dim,
        "taps": sizes.linear_conv_kernel_dim or 0,
    }


def _latent_dimensions(sizes: Architecture, latent: int) -> dict[str, int]:
    """Return the dimensions of multi-head latent attention."""
    heads, rope = sizes.num_attention_heads, sizes.qk_rope_head_dim or 0
    key, value = sizes.qk_nope_head_dim or 0, sizes.v_head_dim or 0
    return {
        "latent": latent,
        "latent_and_key": latent + rope,
        "q_latent": sizes.q_lora_rank or 0,
        "q": heads * (key + rope),
        "values": heads * value,
        "keys_and_values": heads * (key + value),
    }
