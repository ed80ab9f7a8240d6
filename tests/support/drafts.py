"""Packages of tiny random models before they are refined, as `rdrr.convert` hands them over."""

from __future__ import annotations

from rdrr._refining import Draft
from rdrr_converter.convert import convert
from support.checkpoints import make_model, save_checkpoint
from support.encoders import make_encoder, save_encoder
from support.tiny_models import ALL_MODELS


def draft_of(name, rng, folder, *, layers=2, **options):
    """A draft of a tiny random model; two layers show how stages follow each other."""
    tiny = next((model for model in ALL_MODELS if model.model_type == name), None)
    if tiny is None:
        save_encoder(make_encoder(name, rng), folder / "source")
    else:
        model = make_model(tiny, rng, num_hidden_layers=layers)
        save_checkpoint(model, folder / "source", dtype="float32")
    convert(folder / "source", folder / "plain", quantize="f32")
    convert(folder / "source", folder / "unrefined", **options)
    return Draft(folder / "plain", folder / "unrefined", folder / "encoded")
