"""OLMo 3: OLMo 2 with a sliding window in three of four layers, whose rope is never scaled."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._rope import read_dual_rope
from rdrr_converter.architectures.layers import one_full_of
from rdrr_converter.architectures.olmo2 import OLMO2

OLMO3 = replace(
    OLMO2,
    name="olmo3",
    classes=("Olmo3ForCausalLM", "Olmo3Model"),
    defaults={
        **OLMO2.defaults,
        "rope_local_base_freq": 500000.0,
        "rope_theta": 500000.0,
        "sliding_window": 4096,
    },
    attention={**OLMO2.attention, "sliding_window": read.optional_integer("sliding_window")},
    rope=read_dual_rope,
    layer_types=one_full_of(4),
)
