"""The storage type of each tensor, by its role, its name and the layer it is in.

The recipes follow the mixes of the same names in llama.cpp, which spend more bits on the tensors
that are most sensitive to quantization: the output head (the embedding where they are tied), and
the value and down projections of some layers. This module reads no weight.

The profile `doppler` has recipes for the public runtime (DOPPLER) as it is today. It stores Q4_K in
the row layout and F16, and F32 where F16 would overflow; embeddings, head and norms are F16, and
biases F32, as the runtime reads them. Shards are hashed with SHA-256 and not compressed. Options
that contradict the profile are refused in `rdrr_converter.check_options` rather than ignored, and
models that the runtime would compute differently in `rdrr_converter.output.manifest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from rdrr_format.block_fields import BLOCK_FIELDS
from rdrr_format.dtypes import DTYPES, F16_OVERFLOW, DType
from rdrr_format.layouts import Layout, geometry
from rdrr_manifests.profiles import DOPPLER, ProfileName

RowTail = Literal["pad", "ggml", "auto"]

TAILS: tuple[RowTail, ...] = get_args(RowTail)
"""Choices for rows whose length is not a multiple of the block size."""

_GGML_TAIL: Mapping[str, str] = MappingProxyType({"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"})
"""Fallback types of llama.cpp for rows whose length is a multiple of 32 but not of 256.

Rows whose length is not a multiple of 32 either are stored as F16.
"""

_SMALL_ROLES = ("norm", "router", "position_embedding", "conv", "other")

_STATE_GATES = ("in_proj_a", "in_proj_b")
"""Projections to one decay and one strength for each head of linear attention, which are small."""

_OTHER_NAMES: Mapping[str, str] = MappingProxyType({"w2": "down_proj"})
"""Mixtral's names of projections and the usual names."""

_MIXTRAL = 8
"""Number of experts for which llama.cpp spends more bits on the attention, which is comparatively
small in these models."""

_DEEP = 80
"""Number of layers that identifies a model of 70 billion weights, whose value projection llama.cpp
stores with more bits because its few heads are shared by many query heads."""

LayerRule = Callable[[int, int], bool]
"""A predicate on (layer index, number of layers)."""

SCALE_PARTS: Mapping[str, int] = MappingProxyType(
    {
        "F16": 256,  # F16 itself keeps normal numbers so
        **{name: fields.largest for name, fields in BLOCK_FIELDS.items() if fields.f16_offsets},
    }
)
"""The largest value of a block over its scale in float16."""

BLOCK_OVERFLOW = min(SCALE_PARTS.values()) * 65504.0
"""Below this magnitude the float16 scale of every block type is finite."""

SMALLEST_SCALE = 2.0**-22
"""Below this, float16 has less than three bits of a scale, and soon none."""


def use_more_bits(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's medium mixes spend more bits on a layer.

    They do so in the first and the last eighth of the layers and in every third layer between.
    Source: `use_more_bits` in llama.cpp's quantizer.
    """
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def is_in_first_eighth(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's small mixes spend more bits on the down projection of a layer."""
    return layer < layers // 8


def is_in_first_four(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's small mixes spend more bits on the value projection of a layer."""
    del layers
    return layer < 4


@dataclass(frozen=True)
class TypeUpgrade:
    """A larger storage type for a projection in some layers.

    Attributes:
        dtype: The storage type in those layers.
        layers: The predicate that selects them.
    """

    dtype: str
    layers: LayerRule


@dataclass(frozen=True)
class Recipe:
    """The storage types of a named quantization.

    Attributes:
        name: Value of the option `quantize`.
        label: The manifest's `quantization`.
        short_name: The short name in the manifest's `quantizationInfo`.
        weights: Type of matmul weights.
        head: Type of the output head, whether it is a tensor of its own or the embedding.
        upgrades: Larger types by the name of a projection, for some of the layers.
        with_eight_experts: Types by the name of a projection, for models with eight experts.
        of_encoders: Types by the name of a projection, for models whose tokens attend to later
            ones.
        embeddings: Type of an embedding that is not the head; None for the type of the weights.
        small: Type of norms, routers and position embeddings; biases are always F32.
    """

    name: str
    label: str
    short_name: str
    weights: str
    head: str
    upgrades: Mapping[str, TypeUpgrade] = field(default_factory=dict)
    with_eight_experts: Mapping[str, str] = field(default_factory=dict)
    of_encoders: Mapping[str, str] = field(default_factory=dict)
    embeddings: str | None = None
    small: str = "F32"


_MEDIUM: Mapping[str, TypeUpgrade] = MappingProxyType(
    {part: TypeUpgrade("Q6_K", use_more_bits) for part in ("v_proj", "qkv_proj", "down_proj")}
)
_SMALL: Mapping[str, TypeUpgrade] = MappingProxyType(
    {
        "v_proj": TypeUpgrade("Q5_K", is_in_first_four),
        "qkv_proj": TypeUpgrade("Q5_K", is_in_first_four),
        "down_proj": TypeUpgrade("Q5_K", is_in_first_eighth),
    }
)
_KEYS: Mapping[str, str] = MappingProxyType(dict.fromkeys(("v_proj", "k_proj", "qkv_proj"), "Q8_0"))
_KEYS_AND_OUT: Mapping[str, str] = MappingProxyType({**_KEYS, "o_proj": "Q5_K"})

_VALUES: Mapping[str, str] = MappingProxyType({"v_proj": "F16"})
"""What costs the embeddings of all-MiniLM-L6 most in Q8_0: its values take 3.5 % more bytes in F16,
and the least cosine similarity of 1,000 texts rises from 0.99926 to 0.99959."""

RecipeName = Literal[
    "q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q6_k", "q4_0", "q5_0", "q8_0", "f16", "f32"
]
"""The keys of `RECIPES`, for annotations."""

DEFAULT_RECIPE: RecipeName = "q4_k_m"

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("q4_k_m", "Q4_K_M", "q4k", "Q4_K", "Q6_K", _MEDIUM, _KEYS_AND_OUT),
            Recipe("q4_k_s", "Q4_K_S", "q4k", "Q4_K", "Q6_K", _SMALL, _KEYS_AND_OUT),
            Recipe("q5_k_m", "Q5_K_M", "q5k", "Q5_K", "Q6_K", _MEDIUM, _KEYS),
            Recipe("q5_k_s", "Q5_K_S", "q5k", "Q5_K", "Q6_K", {}, _KEYS),
            Recipe("q6_k", "Q6_K", "q6k", "Q6_K", "Q6_K", {}, _KEYS),
            Recipe("q4_0", "Q4_0", "q4_0", "Q4_0", "Q6_K", {}, _KEYS),
            Recipe("q5_0", "Q5_0", "q5_0", "Q5_0", "Q6_K", {}, _KEYS),
            Recipe("q8_0", "Q8_0", "q8_0", "Q8_0", "Q8_0", of_encoders=_VALUES),
            Recipe("f16", "F16", "f16", "F16", "F16"),
            Recipe("f32", "F32", "f32", "F32", "F32"),
        )
    }
)

PROFILES: Mapping[ProfileName, Mapping[str, Recipe]] = MappingProxyType(
    {
        "rdrr": RECIPES,
        DOPPLER: MappingProxyType(
            {
                recipe.name: recipe
                for recipe in (
                    Recipe("q4_k_m", "Q4_K_M", "q4k", "Q4_K", "F16", embeddings="F16", small="F16"),
                    Recipe("f16", "F16", "f16", "F16", "F16", small="F16"),
                )
            }
        ),
    }
)
"""The recipes of each profile."""


def choose_dtype(
    recipe: Recipe,
    role: str,
    name: str,
    layer: int | None,
    layers: int,
    *,
    tied: bool,
    experts: int = 0,
    grouped: bool = False,
    causal: bool = True,
) -> tuple[DType, str]:
    """Choose the storage type of a tensor.

    Args:
        recipe: One of `RECIPES`.
        role: Role in the manifest.
        name: Canonical name; the component before `.weight` is the name of the projection.
        layer: Index of its layer; None outside the layers.
        layers: Number of layers.
        tied: Whether the embedding is also the output head.
        experts: Number of experts in a layer; 0 if there are none.
        grouped: Whether several query heads share a value head.
        causal: Whether tokens attend only to earlier ones.

    Returns:
        The type and the reason for it.
    """
    if role == "bias":
        return DTYPES["F32"], "biases stay F32"
    if role in _SMALL_ROLES:
        return DTYPES[recipe.small], f"{role.replace('_', ' ')}s stay {recipe.small}"
    if role == "lm_head" or (role == "embedding" and tied and not _is_of_layers(name)):
        return DTYPES[recipe.head], "output head" if role == "lm_head" else "embedding and head"
    if role == "embedding" and recipe.embeddings is not None:
        return DTYPES[recipe.embeddings], recipe.name
    part = name.split(".")[-2]
    part = _OTHER_NAMES.get(part, part)
    if part in _STATE_GATES and DTYPES[recipe.weights].is_block:
        return DTYPES["F16"], f"{part} stays F16"
    if layer is None:
        return DTYPES[recipe.weights], recipe.name
    if experts == _MIXTRAL and part in recipe.with_eight_experts:
        return DTYPES[recipe.with_eight_experts[part]], f"{part} in a model with eight experts"
    if not causal and part in recipe.of_encoders:
        return DTYPES[recipe.of_encoders[part]], f"{part} of an encoder"
    dtype, why = _by_layer(recipe, part, layer, layers)
    if dtype == "Q4_K" and part in ("v_proj", "qkv_proj") and grouped and layers == _DEEP:
        return DTYPES["Q5_K"], f"{part} shared by many heads"
    return DTYPES[dtype], why


def _is_of_layers(name: str) -> bool:
    """Return whether a table holds the embeddings of single layers, which the head never uses."""
    return name.endswith("embed_tokens_per_layer.weight")


def _by_layer(recipe: Recipe, part: str, layer: int, layers: int) -> tuple[str, str]:
    upgrades = recipe.upgrades.get(part)
    if upgrades is None:
        return recipe.weights, recipe.name
    if upgrades.layers(layer, layers):
        return upgrades.dtype, f"{part} in a layer that gets more bits"
    return recipe.weights, f"{part} in a layer that does not get more bits"


def choose_tail_dtype(
    dtype: DType, shape: tuple[int, ...], layout: Layout, k_tail: str
) -> tuple[DType, str | None]:
    """Choose the type of rows whose length may not be a multiple of the block size.

    Args:
        dtype: The type that the recipe chose.
        shape: Logical shape.
        layout: Layout of the tensor.
        k_tail: One of `TAILS`.

    Returns:
        The type, and the reason if it differs from `dtype`.
    """
    stored = geometry(dtype, shape, layout)
    if k_tail == "pad" or dtype.name not in _GGML_TAIL or stored.padding == 0:
        return dtype, None
    other = DTYPES[_GGML_TAIL[dtype.name]]
    if stored.row_elements % other.block_elements:
        other = DTYPES["F16"]
    if k_tail == "auto" and geometry(other, shape, layout).size >= stored.size:
        return dtype, None
    reason = (
        f"row length {stored.row_elements} is not a multiple of the {dtype} block size "
        f"(k-tail {k_tail})"
    )
    return other, reason


def holds(dtype: DType, largest: float, *, is_exact: bool) -> bool:
    """Return whether a type holds values, of which float16 must hold the numbers or the scales.

    Args:
        dtype: The type.
        largest: Largest absolute value.
        is_exact: Whether the values have this type already, so that no small one is lost.
    """
    if dtype.name == "F32":
        return True
    parts = SCALE_PARTS.get(dtype.name)
    is_too_small = parts is not None and not is_exact and 0.0 < largest < parts * SMALLEST_SCALE
    return largest < (BLOCK_OVERFLOW if dtype.is_block else F16_OVERFLOW) and not is_too_small
