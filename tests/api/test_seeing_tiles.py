"""A package of SmolVLM answers messages with images of tiles as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdrr
import torch
from support.checkpoints import make_multimodal
from support.image_prompts import QWEN_TEMPLATE, image_part, text, tokenizer, user
from support.images import drawn_image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

SETTINGS: dict[str, Any] = {"size": {"longest_edge": 160}, "max_image_size": {"longest_edge": 56}}
COUNT = 24


def write_checkpoint(folder: Path, rng: np.random.Generator) -> Any:
    """Write a random SmolVLM with a tokenizer and settings of images, and return the model."""
    words = tokenizer("idefics")
    added = {entry["content"]: entry["id"] for entry in words["added_tokens"]}
    size = -(-(max(added.values()) + 1) // 8) * 8
    tower = {"image_size": 56, "num_hidden_layers": 2}
    model = make_multimodal("smolvlm", rng, tower, model_type="llama", vocab_size=size)
    model.config.image_token_id = added["<image>"]
    model.save_pretrained(folder)
    template = QWEN_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    files = {
        "tokenizer.json": words,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>",
            "chat_template": template,
        },
        "preprocessor_config.json": {**SETTINGS, "image_processor_type": "SmolVLMImageProcessor"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["cpu", "wgpu"])
def test_an_image_of_tiles_is_answered_as_by_transformers(rng, tmp_path, backend):
    model = write_checkpoint(tmp_path / "model", rng)
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
    pixels = Idefics3ImageProcessorPil(**SETTINGS)(images=[picture], return_tensors="pt")
    with torch.no_grad():
        logits = model(ids, pixel_values=pixels["pixel_values"], use_cache=False).logits[0]
    logits = logits[len(rendered.ids) - 1 : -1].numpy()
    chosen = np.take_along_axis(logits, np.array(answer.token_ids)[:, None], 1)[:, 0]
    assert (logits.max(axis=1) - chosen).max() <= 1e-3 * np.abs(logits).max()
