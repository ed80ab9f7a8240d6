"""Which storage type a tensor gets: by its role, its part and its place among the layers.

`q4_k_m` is the mix of that name in llama.cpp, Q6_K for the tensors that lose most: the head (the
embedding where the two are one), and values and down-projections in about half of the layers.
This module knows names and numbers; it reads no weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout, geometry

TAILS = ("pad", "ggml", "auto")
"""Choices for rows that are not whole blocks."""

_GGML_TAIL: Mapping[str, str] = MappingProxyType({"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"})
"""What llama.cpp stores instead when a row is not a multiple of 256; F16 if not of 32 either."""

_KEPT_F32 = ("norm", "bias")


@dataclass(frozen=True)
class Recipe:
    """Storage types of a named quantization.

    Attributes:
        name: The option's value.
        label: The manifest's `quantization`.
        word: The short word for it in `quantizationInfo`.
        weights: Matmul weights.
        head: The output head, whether it is a tensor of its own or the embedding.
        more: Parts that get another type in the layers that `gets_more_bits` names.
    """

    name: str
    label: str
    word: str
    weights: str
    head: str
    more: Mapping[str, str] = field(default_factory=dict)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                "q4_k_m", "Q4_K_M", "q4k", "Q4_K", "Q6_K", {"v_proj": "Q6_K", "down_proj": "Q6_K"}
            ),
            Recipe("q8_0", "Q8_0", "q8_0", "Q8_0", "Q8_0"),
            Recipe("f16", "F16", "f16", "F16", "F16"),
            Recipe("f32", "F32", "f32", "F32", "F32"),
        )
    }
)


def gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule: the first and last eighth of the layers, every third between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def choose_dtype(
    recipe: Recipe, role: str, name: str, layer: int | None, layers: int, *, tied: bool
) -> tuple[DType, str]:
    """The storage type of a tensor and the reason for it.

    Args:
        recipe: One of `RECIPES`.
        role: Role in the manifest.
        name: Canonical name; its part before `.weight` is what `Recipe.more` names.
        layer: Its layer, or None.
        layers: Number of layers.
        tied: The embedding is also the head.
    """
    if role in _KEPT_F32:
        return DTYPES["F32"], f"{role}s stay F32"
    if role == "lm_head" or (role == "embedding" and tied):
        return DTYPES[recipe.head], "output head" if role == "lm_head" else "embedding and head"
    part = name.split(".")[-2]
    if layer is not None and part in recipe.more:
        if gets_more_bits(layer, layers):
            return DTYPES[recipe.more[part]], f"{part} in a layer that gets more bits"
        return DTYPES[recipe.weights], f"{part} in a layer that does not get more bits"
    return DTYPES[recipe.weights], recipe.name


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
