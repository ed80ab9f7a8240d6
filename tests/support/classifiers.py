"""Tiny checkpoints of models that classify texts, built by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoints import make_model, write_tokenizer
from support.tiny_models import TinyModel


def make_classifier(
    tiny: TinyModel, rng: np.random.Generator, folder: Path, labels: int, **options: Any
) -> Any:
    """Save a classifier with random weights, and return it.

    Args:
        tiny: The architecture and its sizes.
        rng: Source of the weights.
        folder: Where the checkpoint is written.
        labels: Number of labels.
        options: Further keys of its configuration, such as `id2label`.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    body = make_model(tiny, rng, num_hidden_layers=2, num_labels=labels, **options)
    model = AutoModelForSequenceClassification.from_config(body.config, dtype=torch.float32)
    model.base_model.load_state_dict(body.base_model.state_dict())
    with torch.no_grad():
        weight = rng.standard_normal(tuple(model.score.weight.shape)) / np.sqrt(tiny.hidden)
        # Logits of about 1: of twice that, 1 class in 240 had hardly any probability in all texts.
        model.score.weight.copy_(torch.from_numpy(weight))
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return model
