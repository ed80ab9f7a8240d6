"""Reading a configuration as an architecture, and as transformers does."""

from __future__ import annotations

from rdrr_converter.architectures import ARCHITECTURES, Config

FULL, SLIDING = "full_attention", "sliding_attention"

BY_NAME = {rule.name: rule for rule in ARCHITECTURES}


def config_of(name: str, values: dict) -> Config:
    return BY_NAME[name].config(values, "config.json")


def rope_of(name: str, values: dict) -> dict:
    return BY_NAME[name].rope(config_of(name, values))


def transformers_config(model_type: str, **values):
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **values)
