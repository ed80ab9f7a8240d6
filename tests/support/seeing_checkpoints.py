"""Random checkpoints of models that see, with a tokenizer and the settings of their images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoints import make_multimodal
from support.gemma_images import make_gemma4
from support.image_prompts import QWEN_TEMPLATE, TOKENS, tokenizer

PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
LAYERS = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 12,
}


def _smolvlm(rng: np.random.Generator, vocabulary: int) -> Any:
    tower = {"image_size": 56, "num_hidden_layers": 2}
    return make_multimodal("smolvlm", rng, tower, model_type="llama", vocab_size=vocabulary)


def _gemma3(rng: np.random.Generator, vocabulary: int) -> Any:
    tower = {"image_size": 112, "num_hidden_layers": 1}
    return make_multimodal("gemma3", rng, tower, vocab_size=vocabulary, **LAYERS)


def _gemma4(rng: np.random.Generator, vocabulary: int) -> Any:
    both_ways = {"use_bidirectional_attention": "vision", "global_head_dim": 64}
    return make_gemma4(rng, {}, vocab_size=vocabulary, **LAYERS, **both_ways)


@dataclass(frozen=True)
class Kind:
    """A model that sees.

    Attributes:
        place: How its chat template writes an image.
        processor: Class of its image processor.
        settings: Settings of that.
        make: Makes the model, given a generator and the size of the vocabulary.
    """

    place: str
    processor: str
    settings: dict[str, Any]
    make: Callable[[np.random.Generator, int], Any]


KINDS = {
    "idefics": Kind(
        "<image>",
        "SmolVLMImageProcessor",
        {"size": {"longest_edge": 160}, "max_image_size": {"longest_edge": 56}},
        _smolvlm,
    ),
    "gemma": Kind(
        "<start_of_image>",
        "Gemma3ImageProcessor",
        {"size": {"height": 112, "width": 112}},
        _gemma3,
    ),
    "gemma4": Kind("<|image|>", "Gemma4ImageProcessor", {"max_soft_tokens": 70}, _gemma4),
}
"""By the names of `image_prompts.TOKENS`."""


def write_seeing(folder: Path, rng: np.random.Generator, name: str) -> Any:
    """Write a random model of `KINDS` with a tokenizer and settings of images, and return it."""
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
        "preprocessor_config.json": {**kind.settings, "image_processor_type": kind.processor},
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return model
