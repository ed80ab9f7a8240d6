"""Which storage type a tensor gets: by its role, its part and its place among the layers.

The mixes are those of the same names in llama.cpp: more bits for the tensors that lose most, the
head (the embedding where the two are one), and values and down-projections in some layers.
This module knows names and numbers; it reads no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout, geometry

RowTail = Literal["pad", "ggml", "auto"]

TAILS: tuple[RowTail, ...] = get_args(RowTail)
"""Choices for rows that are not whole blocks."""

_GGML_TAIL: Mapping[str, str] = MappingProxyType({"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"})
"""What llama.cpp stores instead when a row is not a multiple of 256; F16 if not of 32 either."""

_SMALL_ROLES = ("norm", "bias", "router")

_OTHER_NAMES: Mapping[str, str] = MappingProxyType({"w2": "down_proj"})
"""What Mixtral calls parts."""

_MIXTRAL = 8
"""Experts of the models whose attention is small beside them, which llama.cpp gives more bits."""

_DEEP = 80
"""Layers of the models of 70 billion weights, whose few value heads it gives more bits too."""

LayerRule = Callable[[int, int], bool]
"""Whether a layer, of so many, is meant."""


def gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule: the first and last eighth of the layers, every third between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def is_in_first_eighth(layer: int, layers: int) -> bool:
    """llama.cpp's rule for down-projections of its small mixes."""
    return layer < layers // 8


def is_in_first_four(layer: int, layers: int) -> bool:
    """llama.cpp's rule for values of its small mixes."""
    del layers
    return layer < 4


@dataclass(frozen=True)
class More:
    """Another type for a part in some layers.

    Attributes:
        dtype: That type.
        layers: Which layers.
    """

    dtype: str
    layers: LayerRule


@dataclass(frozen=True)
class Recipe:
    """Storage types of a named quantization.

    Attributes:
        name: The option's value.
        label: The manifest's `quantization`.
        word: The short word for it in `quantizationInfo`.
        weights: Matmul weights.
        head: The output head, whether it is a tensor of its own or the embedding.
        more: Parts that get another type in some layers.
        beside_experts: Parts that get another type in a model of eight experts.
        embeddings: An embedding that is not the head; as the weights when None.
        small: Norms, biases and routers.
    """

    name: str
    label: str
    word: str
    weights: str
    head: str
    more: Mapping[str, More] = field(default_factory=dict)
    beside_experts: Mapping[str, str] = field(default_factory=dict)
    embeddings: str | None = None
    small: str = "F32"


_MEDIUM: Mapping[str, More] = MappingProxyType(
    {part: More("Q6_K", gets_more_bits) for part in ("v_proj", "qkv_proj", "down_proj")}
)
_SMALL: Mapping[str, More] = MappingProxyType(
    {
        "v_proj": More("Q5_K", is_in_first_four),
        "qkv_proj": More("Q5_K", is_in_first_four),
        "down_proj": More("Q5_K", is_in_first_eighth),
    }
)
_KEYS: Mapping[str, str] = MappingProxyType(dict.fromkeys(("v_proj", "k_proj", "qkv_proj"), "Q8_0"))
_KEYS_AND_OUT: Mapping[str, str] = MappingProxyType({**_KEYS, "o_proj": "Q5_K"})

RecipeName = Literal[
    "q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q6_k", "q4_0", "q5_0", "q8_0", "f16", "f32"
]
"""The keys of `RECIPES`, for annotations."""

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
            Recipe("q8_0", "Q8_0", "q8_0", "Q8_0", "Q8_0"),
            Recipe("f16", "F16", "f16", "F16", "F16"),
            Recipe("f32", "F32", "f32", "F32", "F32"),
        )
    }
)


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
) -> tuple[DType, str]:
    """The storage type of a tensor and the reason for it.

    Args:
        recipe: One of `RECIPES`.
        role: Role in the manifest.
        name: Canonical name; its part before `.weight` is what a recipe's parts name.
        layer: Its layer, or None.
        layers: Number of layers.
        tied: The embedding is also the head.
        experts: Experts of a layer, 0 where there are none.
        grouped: Several query heads share a value head.
    """
    if role in _SMALL_ROLES:
        return DTYPES[recipe.small], f"{role}s stay {recipe.small}"
    if role == "lm_head" or (role == "embedding" and tied):
        return DTYPES[recipe.head], "output head" if role == "lm_head" else "embedding and head"
    if role == "embedding" and recipe.embeddings is not None:
        return DTYPES[recipe.embeddings], recipe.name
    part = name.split(".")[-2]
    part = _OTHER_NAMES.get(part, part)
    if layer is None:
        return DTYPES[recipe.weights], recipe.name
    if experts == _MIXTRAL and part in recipe.beside_experts:
        return DTYPES[recipe.beside_experts[part]], f"{part} beside eight experts"
    dtype, why = _by_layer(recipe, part, layer, layers)
    if dtype == "Q4_K" and part in ("v_proj", "qkv_proj") and grouped and layers == _DEEP:
        return DTYPES["Q5_K"], f"{part} shared by many heads"
    return DTYPES[dtype], why


def _by_layer(recipe: Recipe, part: str, layer: int, layers: int) -> tuple[str, str]:
    more = recipe.more.get(part)
    if more is None:
        return recipe.weights, recipe.name
    if more.layers(layer, layers):
        return more.dtype, f"{part} in a layer that gets more bits"
    return recipe.weights, f"{part} in a layer that does not get more bits"


def settle_tail(
    dtype: DType, shape: tuple[int, ...], layout: Layout, k_tail: str
) -> tuple[DType, str | None]:
    """The type to store rows in that may not be whole blocks, and the reason if it changed."""
    stored = geometry(dtype, shape, layout)
    if k_tail == "pad" or dtype.name not in _GGML_TAIL or stored.padding == 0:
        return dtype, None
    other = DTYPES[_GGML_TAIL[dtype.name]]
    if stored.row_elements % other.block_elements:
        other = DTYPES["F16"]
    if k_tail == "auto" and geometry(other, shape, layout).size >= stored.size:
        return dtype, None
    reason = f"rows of {stored.row_elements} are not whole {dtype} blocks (k-tail {k_tail})"
    return other, reason
