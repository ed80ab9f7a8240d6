"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with positions that begin after the padding's."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import _encoders as encoders
from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.bert import BERT

ROBERTA: ArchitectureRule = replace(
    BERT,
    name="roberta",
    classes=("RobertaModel", "XLMRobertaModel", "CamembertModel"),
    model_types=("xlm-roberta", "camembert"),
    defaults={**BERT.defaults, "pad_token_id": 1, "vocab_size": 50265},
    output={
        "position_embedding_offset": encoders.positions_after_padding,
        "token_types": read.integer("type_vocab_size"),
    },
    sizes={"max_seq_len": encoders.longest_after_padding},
    body="roberta.",
    prefixes=("roberta.", ""),
    names=encoders.names_with("roberta."),
    other_parts=(*encoders.OTHER_PARTS, r"lm_head\..*"),
    heads=encoders.heads_of_roberta(),
)
