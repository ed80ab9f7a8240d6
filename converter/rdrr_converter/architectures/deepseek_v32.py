"""DeepSeek V3.2: DeepSeek V3 with sparse attention, which is exact within a shorter context."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import _indexed as rules
from rdrr_converter.architectures.deepseek_v3 import DEEPSEEK_V3

DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    classes=("DeepseekV32ForCausalLM", "DeepseekV32Model"),
    model_types=(),
    defaults={**DEEPSEEK_V3.defaults, "index_topk": 2048, "max_position_embeddings": 163840},
    sizes=rules.SIZES,
    layer_types=rules.indexed_layers,
    stated_by_tensors=rules.INDEXER_KEYS,
    unused=rules.indexer,
    remarks=rules.remarks,
    tensors=rules.TENSORS_OF_MODEL,
)
