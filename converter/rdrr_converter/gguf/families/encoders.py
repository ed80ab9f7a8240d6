"""Encoders in GGUF files: BERT, Jina BERT, NomicBERT, also with experts, and ModernBERT.

RoBERTa and XLM-RoBERTa are written as BERT, without the rows of positions that no token has.
llama.cpp computes their GELU in its tanh form. Its embeddings add the first type of tokens to each
token, so that pairs of texts have other results there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rdrr_manifests.graph.names import SUM_BIAS
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.models import Manifest
from rdrr_manifests.package import Package

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture, Parts
from rdrr_converter.gguf.families.gemma import LOCAL_ROPE
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.rank_head import RankForm
from rdrr_converter.gguf.settings import (
    TANH_GELU,
    WRITTEN_WINDOW,
    Config,
    Entries,
    Notes,
    Setting,
    fixed,
    number,
    size,
)

TYPE_COUNT = "tokenizer.ggml.token_type_count"
"""Number of types of tokens, which is stated with the vocabulary."""

_PERIOD = 3
"""llama.cpp's period of ModernBERT's layers without a window, if the file states none."""

_IN_F32 = ("position_embd.weight", "token_types.weight")
"""Tensors that llama.cpp adds without converting them."""

_POSITIONS = "model.embed_positions.weight"
_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "position_embd": "model.embed_positions",
    "token_types": "model.embed_types",
    "token_embd_norm": "model.embed_norm",
}
_NORMS_OF_SUMS = {
    "input_layernorm": "attn_output_norm",
    "post_attention_layernorm": "layer_output_norm",
}


def _after_sums(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of modules where norms follow the sums of the stream and a branch."""
    return {_NORMS_OF_SUMS.get(ours, theirs): ours for theirs, ours in names.items()}


def _with_gates(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of modules where the gates are above the ups, in one tensor."""
    others = {theirs: ours for theirs, ours in names.items() if theirs != "ffn_gate"}
    return {**others, "ffn_up": "mlp.gate_up_proj"}


def _read_types(read: GgufMetadata, _: Config) -> dict[str, Any]:
    count = read.anywhere(TYPE_COUNT)
    return {} if count is None else {"type_vocab_size": count}


def _plan_added(
    _package: Package, _name: str, gguf_name: str, parts: Parts
) -> OutgoingTensor | None:
    if gguf_name not in _IN_F32:
        return None
    return OutgoingTensor(gguf_name, parts, parts[0].shape, "F32")


def _note_bias(_: Config) -> Notes:
    return (
        "llama.cpp adds no bias to the sum of experts: those of the model are left out, as in the "
        "files of its own converter",
    )


_NOT_CAUSAL = Setting(write=lambda _: {"attention.causal": False})
_TYPES = Setting(_read_types)
_RANK = RankForm(
    {"cls": "bert.pooler.dense", "cls.output": "classifier"},
    "cls",
    "tanh",
    biases=("cls", "cls.output"),
)

_BERT = GgufArchitecture(
    "bert",
    "BertModel",
    _after_sums(layer_names.LAYER),
    layer_norm=True,
    is_causal=False,
    outside=_OUTSIDE,
    rank=_RANK,
    plan=_plan_added,
    settings=(_NOT_CAUSAL, _TYPES, TANH_GELU),
)
BERT = replace(_BERT, classes=("RobertaModel",))


def from_position_zero(
    manifest: Manifest, tensors: Sequence[LogicalTensor]
) -> tuple[Manifest, tuple[LogicalTensor, ...]]:
    """Return a model whose positions begin in their first row, as llama.cpp's do.

    Args:
        manifest: The manifest of a package; RoBERTa's positions begin after that of the padding.
        tensors: Its tensors.
    """
    output = manifest.inference.output
    before = output.position_embedding_offset
    if not before:
        return manifest, tuple(tensors)
    output = output.model_copy(update={"position_embedding_offset": 0})
    inference = manifest.inference.model_copy(update={"output": output})
    later = (
        replace(tensor, shape=(tensor.rows - before, tensor.columns), first=tensor.first + before)
        if tensor.name == _POSITIONS
        else tensor
        for tensor in tensors
    )
    return manifest.model_copy(update={"inference": inference}), tuple(later)


def _with_plain_ups(tensors: Iterable[SourceTensor], config: Config) -> Iterator[SourceTensor]:
    """Yield the tensors of Jina BERT; in older files gates and ups are tensors of their own."""
    stacked = 2 * config["intermediate_size"]
    for tensor in tensors:
        is_plain = ".gate_up_proj." in tensor.name and tensor.shape[0] != stacked
        yield replace(tensor, name=tensor.name.replace("gate_up", "up")) if is_plain else tensor


JINA_BERT = replace(
    _BERT,
    name="jina-bert-v2",
    hf_class="JinaBertModel",
    layer=_after_sums(_with_gates(layer_names.LAYER)),
    other_forms={"ffn_gate": "mlp.gate_proj"},
    in_hf_form=_with_plain_ups,
    # llama.cpp loads no other form: the first layer of the published models has no place.
    rank=RankForm({"cls": "classifier"}, "cls", "tanh", biases=("cls",)),
    settings=(
        fixed(feed_forward_type="geglu", position_embedding_type="alibi"),
        number("attention.max_alibi_bias", "max_alibi_bias", 8.0),
        _NOT_CAUSAL,
        _TYPES,
        TANH_GELU,
    ),
)
NOMIC_BERT = replace(
    _BERT,
    name="nomic-bert",
    hf_class="NomicBertModel",
    layer=_after_sums(layer_names.ONE_STACK),
    has_experts=False,
    rank=None,
    settings=(_NOT_CAUSAL, _TYPES),
)
NOMIC_BERT_MOE = replace(
    NOMIC_BERT,
    name="nomic-bert-moe",
    layer={
        **{theirs: ours for theirs, ours in NOMIC_BERT.layer.items() if theirs != "ffn_gate"},
        "ffn_gate_inp": "mlp.gate",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
    },
    has_experts=True,
    dense_layers=True,
    left_out=SUM_BIAS,
    settings=(
        _NOT_CAUSAL,
        _TYPES,
        fixed(activation_function="gelu", moe_sum_bias=False, norm_topk_prob=False),
        size("moe_every_n_layers", "moe_every_n_layers"),
        TANH_GELU,
        Setting(notes=_note_bias),
    ),
)
"""llama.cpp's files lack the bias on the sum of the experts."""


def _read_period(read: GgufMetadata, _: Config) -> dict[str, Any]:
    period = read.get("attention.sliding_window_pattern")
    return {"global_attn_every_n_layers": _PERIOD if period is None else period}


def _write_period(config: Config) -> Entries:
    """State the period of the layers without a window, of which the first layer is one."""
    kinds = config.get("layer_types") or [FULL]
    later = [layer for layer, kind in enumerate(kinds) if kind == FULL and layer]
    return {"attention.sliding_window_pattern": later[0] if later else len(kinds)}


MODERN_BERT = GgufArchitecture(
    "modern-bert",
    "ModernBertModel",
    _with_gates(layer_names.ONE_STACK),
    layer_norm=True,
    is_causal=False,
    biases=False,
    outside={**layer_names.OUTSIDE, "token_embd_norm": "model.embed_norm"},
    rank=RankForm(
        {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"},
        "mean",
        "gelu_erf",
        biases=("cls.output",),
    ),
    settings=(
        fixed(attention_bias=False),
        _NOT_CAUSAL,
        LOCAL_ROPE,
        size("attention.sliding_window", "sliding_window"),
        WRITTEN_WINDOW,
        Setting(_read_period, _write_period),
        TANH_GELU,
    ),
)
