"""From an opened checkpoint to the model it holds: typed blocks, and every tensor checked.

Everything that can be wrong with a checkpoint's names, shapes and configuration is found here,
before anything is written. No weight is changed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pydantic
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Architecture, Inference

from rdrr_converter.architectures import ArchitectureRule, Config, TensorRule, read_block
from rdrr_converter.architectures._base import BODY
from rdrr_converter.architectures._layers import SLIDING, layer_pattern
from rdrr_converter.sources import Source, SourceTensor
from rdrr_converter.sources._base import same_values

SESSION: Mapping[str, Any] = {
    "compute": {
        "defaults": {
            "activationDtype": "f32",
            "mathDtype": "f32",
            "accumDtype": "f32",
            "outputDtype": "f32",
        }
    },
    "kvcache": {
        "kvDtype": "f16",
        "layout": "contiguous",
        "tiering": {
            "mode": "off",
            "gating": {"mode": "auto"},
            "compression": {"mode": "none"},
        },
        "quantization": {"mode": "none"},
    },
    "decodeLoop": {"batchSize": 1, "disableCommandBatching": False},
}
"""`inference.session`, which the public runtime requires; ours does not read it."""


@dataclass(frozen=True)
class ModelTensor:
    """One tensor of the model.

    Attributes:
        name: Canonical name, the one in the package.
        source: Where its values are.
        role: Role in the manifest.
        layer: Number of its layer; None outside the layers.
    """

    name: str
    source: SourceTensor
    role: str
    layer: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.source.shape

    @property
    def group(self) -> str:
        """Group in the manifest: embed, layer.N or head."""
        if self.layer is not None:
            return f"layer.{self.layer}"
        return "embed" if self.role == "embedding" else "head"


@dataclass(frozen=True)
class Model:
    """A checkpoint, understood.

    Attributes:
        name: Name of the architecture.
        sizes: The manifest's `architecture`.
        inference: The manifest's `inference`.
        tensors: In the order in which they are stored.
        tied: The head is the embedding.
        notes: What the user should know.
    """

    name: str
    sizes: Architecture
    inference: Inference
    tensors: tuple[ModelTensor, ...]
    tied: bool
    notes: tuple[str, ...]


def read_model(source: Source, rule: ArchitectureRule) -> Model:
    """Match a checkpoint with an architecture.

    Raises:
        SourceError: A tensor is missing, unexpected or misshapen, or the configuration lacks or
            misstates something.
        ConversionError: The configuration asks for what the format cannot state.
    """
    config = Config(source.config, rule.defaults, source.config_place)
    sizes = _sizes(config)
    tensors, notes = _match(source, rule, config, sizes)
    tied, tensors, tie_notes = _decide_head(tensors, config)
    return Model(
        name=rule.name,
        sizes=sizes,
        inference=_inference(rule, config, tensors, tied),
        tensors=tensors,
        tied=tied,
        notes=(*notes, *tie_notes),
    )


def _sizes(config: Config) -> Architecture:
    sizes = Architecture(
        num_layers=config.layers,
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=config.integer("num_attention_heads"),
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.integer("vocab_size"),
        max_seq_len=config.integer("max_position_embeddings"),
    )
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise config.fault(
            "num_key_value_heads",
            f"a divisor of {sizes.num_attention_heads} heads",
            sizes.num_key_value_heads,
        )
    return sizes


def _dimensions(sizes: Architecture) -> dict[str, int]:
    return {
        "vocab": sizes.vocab_size,
        "hidden": sizes.hidden_size,
        "inner": sizes.intermediate_size,
        "q": sizes.num_attention_heads * sizes.head_dim,
        "kv": sizes.num_key_value_heads * sizes.head_dim,
        "head": sizes.head_dim,
    }


def _match(
    source: Source, rule: ArchitectureRule, config: Config, sizes: Architecture
) -> tuple[tuple[ModelTensor, ...], list[str]]:
    prefix = next(
        (p for p in rule.prefixes if f"{p}embed_tokens.weight" in source.tensors), rule.prefixes[0]
    )
    if sizes.num_layers > len(source.tensors):
        most = f"at most {len(source.tensors)}, the number of tensors"
        raise config.fault("num_hidden_layers", most, sizes.num_layers)
    dimensions = _dimensions(sizes)
    found: list[ModelTensor] = []
    missing: list[str] = []
    for tensor_rule, layer in _expected(rule, sizes.num_layers):
        name = tensor_rule.name.format(layer=layer)
        source_name = prefix + name.removeprefix(BODY) if name.startswith(BODY) else name
        tensor = source.tensors.get(source_name)
        if tensor is not None:
            _check_shape(tensor, tuple(dimensions[size] for size in tensor_rule.shape))
            found.append(ModelTensor(name, tensor, tensor_rule.role, layer))
        elif _is_required(tensor_rule, config):
            missing.append(source_name)
    if missing:
        raise SourceError(
            "a tensor is missing" if len(missing) == 1 else f"{len(missing)} tensors are missing",
            where=source.path,
            expected=_some(missing),
            found=f"{len(source.tensors)} tensors, as {_some(list(source.tensors))}",
        )
    return tuple(found), _leftovers(source, rule, {tensor.source.name for tensor in found})


def _expected(rule: ArchitectureRule, layers: int) -> Iterator[tuple[TensorRule, int | None]]:
    """Every tensor the model may have, in order: outside, layer by layer, outside."""
    per_layer = [row for row in rule.tensors if row.is_per_layer]
    first = rule.tensors.index(per_layer[0])
    yield from ((row, None) for row in rule.tensors[:first])
    for layer in range(layers):
        yield from ((row, layer) for row in per_layer)
    yield from ((row, None) for row in rule.tensors[first:] if not row.is_per_layer)


def _is_required(rule: TensorRule, config: Config) -> bool:
    return rule.required(config) if callable(rule.required) else rule.required


def _check_shape(tensor: SourceTensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise SourceError(
            "wrong shape",
            where=f"{tensor.file}, tensor {tensor.name}",
            expected=list(expected),
            found=list(tensor.shape),
            hint="config.json and the weights do not belong together",
        )


def _leftovers(source: Source, rule: ArchitectureRule, used: set[str]) -> list[str]:
    """Notes on tensors that are left out on purpose."""
    pattern = re.compile("|".join(rule.ignored) or "$^")
    extra = [name for name in source.tensors if name not in used]
    unknown = [name for name in extra if not pattern.fullmatch(name)]
    if unknown:
        raise SourceError(
            f"unexpected tensors for architecture {rule.name}",
            where=source.path,
            expected="only tensors that the architecture names",
            found=f"{len(unknown)} more: {_some(unknown)}",
        )
    return [f"{name}: left out, it is computed when the model is loaded" for name in extra]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _decide_head(
    tensors: tuple[ModelTensor, ...], config: Config
) -> tuple[bool, tuple[ModelTensor, ...], list[str]]:
    """Whether the head is the embedding. The tensors decide; the flag only breaks a tie."""
    claimed = config.flag("tie_word_embeddings")
    head = next((tensor for tensor in tensors if tensor.role == "lm_head"), None)
    if head is None:
        notes = [] if claimed else ["no lm_head.weight: the embedding serves as head"]
        return True, tensors, notes
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
    attention["attention_bias"] = any(
        tensor.role == "bias" and ".self_attn." in tensor.name for tensor in tensors
    )
    blocks = {
        "attention": attention,
        "normalization": read_block(rule.normalization, config),
        "ffn": read_block(rule.ffn, config),
        "rope": rule.rope(config),
        "output": {**read_block(rule.output, config), "tie_word_embeddings": tied},
        "layer_pattern": layer_pattern(types),
        "session": SESSION,
    }
    try:
        return Inference.model_validate(blocks)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise SourceError(
            f"the configuration gives an impossible {path}",
            where=config.where,
            expected=first["msg"],
            found=first.get("input"),
        ) from error
