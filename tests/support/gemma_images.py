"""Images of random models of Gemma, as rdrr and as transformers take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rdrr_runtime.images.patches import ImagePatches
from support.checkpoints import make_multimodal

PATCH = 16

_CENTRES = {"std_bias": 0.0, "std_scale": 1.0, "min": -1.2, "max": 1.2}
"""Middles of buffers, which transformers leaves as they are."""


def make_gemma4(rng: np.random.Generator, tower: dict[str, Any], **text: Any) -> Any:
    """Build a tiny Gemma 4 that sees; its features are standardized, or its products limited."""
    sizes = {"num_key_value_heads": 2, "position_embedding_size": 48}
    limits = tower.get("use_clipped_linears", False)
    tower = {"standardize": not limits, **sizes, **tower}
    text = {"hidden_size_per_layer_input": 0, **text}
    model = make_multimodal("gemma4", rng, tower, **text)
    body = model.model.vision_tower
    for name, vector in body.named_buffers():
        centre = _CENTRES.get(
            name.rpartition(".")[2].removeprefix("input_").removeprefix("output_")
        )
        if centre is not None:
            values = centre + 0.3 * rng.standard_normal(vector.shape)
            vector.copy_(torch.from_numpy(np.asarray(values, np.float32)))
    return model


def patches_of_gemma4(rng: np.random.Generator, height: int, width: int) -> ImagePatches:
    """Return random patches of an image of height x width patches, which the tower scales."""
    values = rng.uniform(-1, 1, (height * width, 3 * PATCH**2))
    return ImagePatches(values.astype(np.float32), (1, height, width))


def inputs_of_gemma4(image: ImagePatches) -> dict[str, torch.Tensor]:
    """Return an image as transformers takes it: patches in rows from 0 to 1, and their places."""
    _, height, width = image.grid
    squares = image.patches.reshape(height // 3, width // 3, 3, 3, -1).swapaxes(1, 2)
    raster = (squares.reshape(1, height * width, -1) + 1) / 2
    places = np.indices((height, width)).reshape(2, -1).T[None, :, ::-1]
    return {
        "pixel_values": torch.from_numpy(raster),
        "image_position_ids": torch.from_numpy(places.copy()),
    }
