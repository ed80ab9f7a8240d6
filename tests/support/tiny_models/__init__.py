"""Small models of every architecture, as configurations; `support.checkpoints` builds them."""

from __future__ import annotations

from support.tiny_models.covering import COVERING, covering
from support.tiny_models.gemma import GEMMA3N_MODELS, GEMMA4_MODELS
from support.tiny_models.latest import LATENT_YARN, LATEST_MODELS
from support.tiny_models.layer_norm import OLDER_MODELS
from support.tiny_models.model import VOCAB, TinyModel
from support.tiny_models.rms_norm import MINISTRAL3_ROPE, MORE_MODELS, TINY_MODELS
from support.tiny_models.states import STATE_SPACE_MODELS

ALL_MODELS = (
    TINY_MODELS
    + MORE_MODELS
    + LATEST_MODELS
    + OLDER_MODELS
    + GEMMA4_MODELS
    + GEMMA3N_MODELS
    + STATE_SPACE_MODELS
)

__all__ = [
    "ALL_MODELS",
    "COVERING",
    "GEMMA3N_MODELS",
    "GEMMA4_MODELS",
    "LATENT_YARN",
    "LATEST_MODELS",
    "MINISTRAL3_ROPE",
    "MORE_MODELS",
    "OLDER_MODELS",
    "STATE_SPACE_MODELS",
    "TINY_MODELS",
    "VOCAB",
    "TinyModel",
    "covering",
]
