"""A package of SmolVLM answers messages with images of tiles as transformers does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rdrr
import torch
from support.image_prompts import image_part, text, user
from support.images import drawn_image
from support.seeing_checkpoints import KINDS, write_seeing
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

COUNT = 24


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["cpu", "wgpu"])
def test_an_image_of_tiles_is_answered_as_by_transformers(rng, tmp_path, backend):
    model = write_seeing(tmp_path / "model", rng, "idefics")
    rdrr.convert(tmp_path / "model", tmp_path / "out", quantize="f32", vision_quantize="f32")
    picture = drawn_image(90, 150)
    message = user(text("a "), image_part(picture), text("\nb?"))
    hints = {"kernel_hints": {"computePrecision": "f32"}, "kv_dtype": "f32"}
    options: dict[str, Any] = {} if backend == "cpu" else hints
    with rdrr.load(tmp_path / "out", backend=backend, context=256, **options) as package:
        rendered = package._render_chat([message])
        answer = package.chat([message], max_tokens=COUNT)
        answer.read()
    (image,) = rendered.images
    assert image.tiles == (2, 3)
    ids = torch.tensor([[*rendered.ids, *answer.token_ids]])
    pixels = Idefics3ImageProcessorPil(**KINDS["idefics"].settings)(
        images=[picture], return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(ids, pixel_values=pixels["pixel_values"], use_cache=False).logits[0]
    logits = logits[len(rendered.ids) - 1 : -1].numpy()
    chosen = np.take_along_axis(logits, np.array(answer.token_ids)[:, None], 1)[:, 0]
    assert (logits.max(axis=1) - chosen).max() <= 1e-3 * np.abs(logits).max()
