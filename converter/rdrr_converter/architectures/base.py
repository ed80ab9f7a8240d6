"""What an architecture file states.

An architecture is one constant: which checkpoints it fits, what its configuration keys mean and
which tensors it has. It holds no code that converts or computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rdrr_converter.architectures._rope import read_rope
from rdrr_converter.architectures.config import Config

Rule = Callable[[Config], object]
"""Reads one field of a typed block from the configuration."""

Block = Mapping[str, object]
"""Fields of a typed block (Python names): a `Rule` each, or the constant itself."""


@dataclass(frozen=True)
class TensorRule:
    """One tensor, or one in each layer, or one of each expert.

    Attributes:
        name: Canonical (Hugging Face) name; `{layer}` and `{expert}` stand for their numbers.
        role: Role in the manifest.
        shape: Names of sizes: vocab, hidden, inner, q and kv (heads times head size), head;
            experts (their number), width (inner layer of one), shared (of the shared expert), one.
        required: Whether the checkpoint must have it; a rule reads that from the configuration.
            A tensor that is there is used either way. Where the rule is a `Flag`, an export states
            it; where it is false, no configuration can say that there is such a tensor.
        layers: Numbers of the layers that have it; all of them when None.
        aliases: Other names that checkpoints have for it.
    """

    name: str
    role: str
    shape: tuple[str, ...]
    required: bool | Callable[[Config], bool] = True
    layers: Callable[[Config], Collection[int]] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def is_per_layer(self) -> bool:
        """Whether layers have one each."""
        return "{layer}" in self.name

    @property
    def is_per_expert(self) -> bool:
        """Whether experts have one each."""
        return "{expert}" in self.name


@dataclass(frozen=True)
class StackRule:
    """Tensors of a layer that a checkpoint may hold on top of each other in one.

    Attributes:
        name: Name of the one; `{layer}` stands for the number of the layer.
        parts: Names of `TensorRule`s, from the top down; where they have `{expert}`, all of them
            for the first expert, then for the next.
    """

    name: str
    parts: tuple[str, ...]


BODY = "model."
"""What canonical names of everything but the head begin with."""


@dataclass(frozen=True)
class ArchitectureRule:
    """One architecture.

    Attributes:
        name: Its `model_type`, which is also the name of its file.
        classes: Values of `architectures` in config.json.
        model_types: Further values of `model_type` and of `--arch` that mean the same.
        defaults: Values that absent configuration keys have in transformers.
        attention: Fields of the block `inference.attention`, and so the next ones.
        layer_types: `full_attention` or `sliding_attention` for each layer.
        tensors: In the order in which they are stored.
        branch_scale: Factor on what attention and feed-forward add to the residual stream.
        stacks: Tensors that may be stored as one.
        experts: Fields of the block `moeConfig`; None where no model of the kind has experts.
        mask_token: Key of the configuration with the id of a token that stands for one to be
            filled in, for models that were trained to do so.
        prefixes: What may stand in checkpoints where canonical names have `model.`.
        ignored: Patterns of tensors that are not weights (computed when the model is loaded).
        other_parts: Patterns of tensors that belong to what is not the text model.
    """

    name: str
    classes: tuple[str, ...]
    defaults: Mapping[str, object]
    attention: Block
    normalization: Block
    ffn: Block
    output: Block
    layer_types: Callable[[Config], tuple[str, ...]]
    tensors: tuple[TensorRule, ...]
    rope: Callable[[Config], Mapping[str, object]] = read_rope
    branch_scale: Callable[[Config], float] | float = 1.0
    stacks: tuple[StackRule, ...] = ()
    experts: Block | None = None
    mask_token: str | None = None
    model_types: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = (BODY, "")
    ignored: tuple[str, ...] = (
        r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
        r".*\.self_attn\.(bias|masked_bias)$",
    )
    other_parts: tuple[str, ...] = ()


def read_block(block: Block, config: Config) -> dict[str, object]:
    """The fields of a typed block, with every rule read from the configuration."""
    return {key: rule(config) if callable(rule) else rule for key, rule in block.items()}
