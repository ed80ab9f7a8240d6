"""Reading the model from an opened checkpoint: the manifest's typed blocks and its tensors.

All errors in a checkpoint's configuration, tensor names and shapes are found here, before anything
is written. Weights are not changed, and are compared only to decide whether the head is tied.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass

import pydantic
from rdrr_format.errors import SourceError
from rdrr_manifests.doppler import SESSION
from rdrr_manifests.models import Architecture, Inference, MoeConfig

from rdrr_converter.architectures import ArchitectureRule, Config, read_block
from rdrr_converter.architectures.layers import SLIDING, layer_pattern
from rdrr_converter.checkpoint.source import Source, same_values
from rdrr_converter.reading.classification import read_head, without_head
from rdrr_converter.reading.draft_head import NO_DRAFT_HEAD, match_draft_head
from rdrr_converter.reading.logit_score import read_logit_score
from rdrr_converter.reading.matching import ModelTensor, is_tied, match
from rdrr_converter.reading.sentence_modules import MODULES, mean_of_tokens, read_modules
from rdrr_converter.reading.tower import NO_TOWER, VisionTower, match_tower
from rdrr_converter.reading.unread_keys import check_unread
from rdrr_converter.tokenizer.files import mask_token_id


@dataclass(frozen=True)
class SourceModel:
    """The model that a checkpoint holds.

    Attributes:
        name: Name of the architecture.
        sizes: The manifest's `architecture`.
        inference: The manifest's `inference`.
        tensors: The model's tensors in storage order.
        tied: Whether the output head is the embedding.
        notes: Notes for the user.
        moe: The manifest's `moeConfig`, without the fields that depend on where experts are stored.
        mask_token_id: Id of the mask token, for models that fill in masked tokens.
        source_kind: Kind of the checkpoint, such as `gguf`.
        tower: Its vision tower, whose tensors are the last ones of `tensors`.
    """

    name: str
    sizes: Architecture
    inference: Inference
    tensors: tuple[ModelTensor, ...]
    tied: bool
    notes: tuple[str, ...]
    moe: MoeConfig | None = None
    mask_token_id: int | None = None
    source_kind: str = ""
    tower: VisionTower = NO_TOWER


def read_model(
    source: Source,
    rule: ArchitectureRule,
    allow_unread: Collection[str] = (),
    *,
    keeps_draft_head: bool = True,
    keeps_tower: bool = True,
) -> SourceModel:
    """Read a checkpoint as a model of an architecture.

    Args:
        source: The checkpoint.
        rule: The architecture.
        allow_unread: Keys of the configuration that may be ignored.
        keeps_draft_head: Whether to read the head for multi-token prediction, if there is one.
        keeps_tower: Whether to read the vision tower, if there is one.

    Raises:
        SourceError: A tensor is missing, is unexpected or has the wrong shape, or a value in the
            configuration is missing or invalid.
        ConversionError: The configuration asks for something that the format cannot express, or
            has a key that nothing reads.
    """
    config = rule.config(source.text_config, source.config_path)
    sizes, moe = read_sizes(rule, config), read_experts(rule, config)
    draft_head = NO_DRAFT_HEAD
    if keeps_draft_head:
        draft_head = match_draft_head(source, rule, config, sizes, moe)
    tower = match_tower(source, rule.tower, sizes) if keeps_tower else NO_TOWER
    used = draft_head.used | tower.used
    tensors, notes = match(without_head(source, rule), rule, config, sizes, moe, used)
    if not any(tensor.expert is not None for tensor in (*tensors, *draft_head.tensors)):
        moe = None  # every layer of the mixture is dense
    width = _output_size(rule, config, sizes)
    head = read_head(source, rule, config, width)
    answers = None if head is not None else read_logit_score(source)
    modules = head or (read_modules(source, width) if answers is None else None)
    causal = read_block(rule.attention, config).get("causal", True)
    pooling_notes = []
    if modules is None and answers is None and not causal:
        modules = mean_of_tokens()
        pooling_notes = [f"there is no {MODULES}: an embedding is the mean of a text's tokens"]
    tied, tensors, tie_notes = _decide_head(tensors, config, source, has_head=modules is None)
    mask, mask_notes = _mask_token(rule, config)
    if head is not None and head.classifier is None:
        mask = mask_token_id(source)
    inference = _inference(rule, config, tensors, tied)
    if answers is not None:
        modules = head = answers.head(tensors, inference.output)
        tie_notes += [] if head is not None else [answers.note]
        tensors = tuple(tensor for tensor in tensors if head is None or tensor.role != "lm_head")
    if modules is not None:
        update = {
            "embedding_postprocessor": modules.block,
            "classifier": None if head is None else head.classifier,
        }
        output = inference.output.model_copy(update=update)
        inference = inference.model_copy(update={"output": output})
        tensors = (*tensors, *modules.tensors)
    tensors = (*tensors, *draft_head.tensors, *tower.tensors)
    _read_flags(rule, config)
    unread_notes = check_unread(config, rule, allow_unread)
    return SourceModel(
        name=rule.name,
        sizes=sizes,
        inference=inference,
        tensors=tensors,
        tied=tied,
        notes=(
            *draft_head.notes,
            *tower.notes,
            *notes,
            *rule.remarks(config),
            *tie_notes,
            *pooling_notes,
            *mask_notes,
            *unread_notes,
        ),
        moe=moe,
        mask_token_id=mask,
        source_kind=source.kind,
        tower=tower,
    )


def _output_size(rule: ArchitectureRule, config: Config, sizes: Architecture) -> int:
    """Return the width of the hidden states that a head reads."""
    size = read_block(rule.output, config).get("embedding_size")
    return size if isinstance(size, int) else sizes.hidden_size


def _read_flags(rule: ArchitectureRule, config: Config) -> None:
    """Read the flags that say which tensors exist; matching reads only those of absent ones."""
    for row in rule.tensors:
        if callable(row.required):
            row.required(config)


def _mask_token(rule: ArchitectureRule, config: Config) -> tuple[int | None, list[str]]:
    if rule.mask_token is None:
        return None, []
    token = config.get(rule.mask_token)
    if type(token) is not int or token < 0:
        raise config.fault(rule.mask_token, "a token id", token)
    is_stated = rule.mask_token in config.values
    return token, [] if is_stated else [f"{rule.mask_token} is not stated: {token} is assumed"]


def read_experts(rule: ArchitectureRule, config: Config) -> MoeConfig | None:
    """Return the experts that a configuration describes; None if it describes none."""
    if rule.experts is None or not (rule.has_experts is None or rule.has_experts(config)):
        return None
    moe = MoeConfig.model_validate(read_block(rule.experts, config))
    if moe.num_experts_per_token > moe.num_experts:
        raise config.fault(
            "num_experts_per_tok", f"at most {moe.num_experts}", moe.num_experts_per_token
        )
    return moe


def read_sizes(rule: ArchitectureRule, config: Config) -> Architecture:
    """Return the sizes that a configuration states."""
    more = read_block(rule.sizes, config)
    usual: dict[str, object] = {
        "num_layers": config.layers,
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": (rule.inner or _inner)(config),
        "num_attention_heads": config.integer("num_attention_heads"),
        "num_key_value_heads": config.kv_heads,
        "vocab_size": config.integer("vocab_size"),
        "max_seq_len": _context(rule, config),
    }
    if "head_dim" not in more:  # by default it is that of attention with keys of each head
        more["head_dim"] = config.head_dim
    try:
        sizes = Architecture.model_validate(usual | more)
    except pydantic.ValidationError as error:
        raise _impossible(error, config) from error
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise config.fault(
            "num_key_value_heads",
            f"a divisor of {sizes.num_attention_heads} heads",
            sizes.num_key_value_heads,
        )
    return sizes


def _inner(config: Config) -> int:
    """Return the intermediate size under the usual key."""
    return config.integer("intermediate_size")


def _context(rule: ArchitectureRule, config: Config) -> int:
    """Return the maximum context length, which YaRN extends by its factor."""
    stated = config.integer("max_position_embeddings")
    rope = rule.rope(config)
    original, factor = rope.get("yarn_original_max_pos"), rope.get("rope_scaling_factor")
    if not isinstance(original, int) or not isinstance(factor, float):
        return stated
    return max(stated, round(original * factor)) if original <= stated else stated


def _decide_head(
    tensors: tuple[ModelTensor, ...], config: Config, source: Source, *, has_head: bool
) -> tuple[bool, tuple[ModelTensor, ...], list[str]]:
    """Decide whether the head is the embedding, by the tensors rather than by the configuration.

    Args:
        tensors: The tensors of the model.
        config: The configuration.
        source: The checkpoint.
        has_head: Whether the model needs a head; embedding models have none.

    Returns:
        Whether the head is tied, the tensors to store, and notes.

    Raises:
        SourceError: There is no head, and the configuration says that it is not the embedding.
    """
    claimed = config.flag("tie_word_embeddings")
    head = next((tensor for tensor in tensors if tensor.role == "lm_head"), None)
    if head is None:
        claimed = is_tied(source, config)
        if has_head and not claimed:
            raise SourceError(
                "there is no lm_head.weight, and the embedding is not the head either",
                where=config.where,
                expected="lm_head.weight, or tie_word_embeddings: true",
                found="tie_word_embeddings: false",
                hint="the checkpoint is incomplete, or is no language model; state "
                "tie_word_embeddings: true only if it was trained with the embedding as head",
            )
        return claimed, tensors, []
    if not claimed:
        return False, tensors, []
    embedding = next(tensor for tensor in tensors if tensor.role == "embedding")
    if same_values(head.source, embedding.source):
        kept = tuple(tensor for tensor in tensors if tensor is not head)
        return True, kept, ["lm_head.weight equals the embedding: stored once"]
    return (
        False,
        tensors,
        ["lm_head.weight differs from the embedding: kept, although config.json calls them tied"],
    )


def _inference(
    rule: ArchitectureRule, config: Config, tensors: tuple[ModelTensor, ...], tied: bool
) -> Inference:
    types = rule.layer_types(config)
    attention = read_block(rule.attention, config)
    if SLIDING not in types:
        attention["sliding_window"] = None
    attention["query_key_norm"] = any(
        part in tensor.name for tensor in tensors for part in (".q_norm.", ".query_layernorm.")
    )
    attention["attention_bias"] = any(
        ".self_attn." in tensor.name and tensor.name.endswith(".bias") for tensor in tensors
    )
    blocks = {
        "attention": attention,
        "normalization": read_block(rule.normalization, config),
        "ffn": read_block(rule.ffn, config),
        "rope": rule.rope(config),
        "output": {**read_block(rule.output, config), "tie_word_embeddings": tied},
        "layer_pattern": {
            **layer_pattern(types),
            **read_block(rule.pattern, config),
            **read_block(
                {"residual_branch_scale": rule.branch_scale, "parallel_residual": rule.parallel},
                config,
            ),
        },
        "session": deepcopy(dict(SESSION)),
        "state_space": rule.state_space and read_block(rule.state_space, config),
    }
    try:
        return Inference.model_validate(blocks)
    except pydantic.ValidationError as error:
        raise _impossible(error, config) from error


def _impossible(error: pydantic.ValidationError, config: Config) -> SourceError:
    """Return the error for a value that no block of the manifest can have."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    return SourceError(
        f"the configuration gives an impossible {path}",
        where=config.where,
        expected=first["msg"],
        found=first.get("input"),
    )
