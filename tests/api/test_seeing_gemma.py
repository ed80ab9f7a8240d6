"""Packages of Gemma 3 and 4 answer messages with images as transformers does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdrr
import torch
from rdrr_runtime.decode.scheduler import Pace, ScheduledText, Scheduler
from rdrr_runtime.sampling.params import SamplingParams
from support.checkpoints import make_multimodal
from support.gemma_images import make_gemma4
from support.image_prompts import (
    PICTURES,
    QWEN_TEMPLATE,
    SEEN,
    TOKENS,
    text,
    tokenizer,
    user,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

COUNT = 12
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
LAYERS = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 12,
}


@dataclass(frozen=True)
class Kind:
    """A model: how its chat template writes an image, and the settings of its image processor."""

    place: str
    settings: dict[str, Any]

    def make(self, rng: np.random.Generator, vocabulary: int) -> Any:
        if "size" in self.settings:
            tower = {"image_size": 112, "num_hidden_layers": 1}
            return make_multimodal("gemma3", rng, tower, vocab_size=vocabulary, **LAYERS)
        both_ways = {"use_bidirectional_attention": "vision", "global_head_dim": 64}
        return make_gemma4(rng, {}, vocab_size=vocabulary, **LAYERS, **both_ways)

    def inputs(self, ids: torch.Tensor, image_token: int) -> dict[str, torch.Tensor]:
        """Return what transformers makes of the pictures."""
        kinds, images = (ids == image_token).int(), list(PICTURES)
        if "size" in self.settings:
            judged = Gemma3ImageProcessorPil(**self.settings)(images=images, return_tensors="pt")
            return {"pixel_values": judged["pixel_values"], "token_type_ids": kinds}
        judged = Gemma4ImageProcessorPil(**self.settings)(images=images, return_tensors="pt")
        names = ("pixel_values", "image_position_ids")
        return {**{name: judged[name] for name in names}, "mm_token_type_ids": kinds}


KINDS = {
    "gemma": Kind("<start_of_image>", {"size": {"height": 112, "width": 112}}),
    "gemma4": Kind("<|image|>", {"max_soft_tokens": 70}),
}


def write_checkpoint(folder: Path, rng: np.random.Generator, name: str) -> Any:
    """Write a random model with a tokenizer and settings of images, and return the model."""
    kind, words = KINDS[name], tokenizer(name)
    added = {entry["content"]: entry["id"] for entry in words["added_tokens"]}
    model = kind.make(rng, -(-(max(added.values()) + 1) // 8) * 8)
    model.config.image_token_id = added[TOKENS[name][1]]
    model.save_pretrained(folder)
    files = {
        "tokenizer.json": words,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "</s>",
            "chat_template": QWEN_TEMPLATE.replace(PLACE, kind.place),
        },
        "preprocessor_config.json": {
            **kind.settings,
            "image_processor_type": f"Gemma{4 if name == 'gemma4' else 3}ImageProcessor",
        },
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return model


@pytest.mark.parametrize("name", ["gemma", pytest.param("gemma4", marks=pytest.mark.thorough)])
def test_two_images_and_a_second_turn_are_answered_as_by_transformers(rng, tmp_path, name):
    model = write_checkpoint(tmp_path / "model", rng, name)
    rdrr.convert(tmp_path / "model", tmp_path / "out", quantize="f32", vision_quantize="f32")
    turns = [SEEN, {"role": "assistant", "content": "user"}, user(text("a b?"))]
    with rdrr.load(tmp_path / "out", backend="cpu", context=320) as package:
        for messages in ([SEEN], turns):
            rendered = package._render_chat(messages)
            answer = package.chat(messages, max_tokens=COUNT)
            answer.read()
            ids = torch.tensor([[*rendered.ids, *answer.token_ids]])
            inputs = KINDS[name].inputs(ids, model.config.image_token_id)
            with torch.no_grad():
                logits = model(ids, **inputs, use_cache=False).logits[0]
            logits = logits[len(rendered.ids) - 1 : -1].numpy()
            chosen = np.take_along_axis(logits, np.array(answer.token_ids)[:, None], 1)[:, 0]
            assert (logits.max(axis=1) - chosen).max() <= 2e-4 * np.abs(logits).max()
        # A server reads prompts in parts, none of which ends within an image.
        prompt = package._with_images(rendered)
        texts = [ScheduledText(prompt, COUNT, SamplingParams(), frozenset()) for _ in range(2)]
        Scheduler(package._opened.backend.batch(2, 320), Pace(prompt_rows=10)).run(texts)
        assert [each.ids[: len(answer.token_ids)] for each in texts] == [answer.token_ids] * 2
