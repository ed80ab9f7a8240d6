"""What an architecture file states.

An architecture is one constant: which checkpoints it fits, what its configuration keys mean and
which tensors it has. It holds no code that converts or computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rdrr_converter.architectures._config import Config
from rdrr_converter.architectures._rope import read_rope

Rule = Callable[[Config], object]
"""Reads one field of a typed block from the configuration."""

Block = Mapping[str, object]
"""Fields of a typed block (Python names): a `Rule` each, or the constant itself."""


@dataclass(frozen=True)
class TensorRule:
    """One tensor, or one in each layer.

    Attributes:
        name: Canonical (Hugging Face) name; `{layer}` stands for the number of a layer.
        role: Role in the manifest.
        shape: Names of sizes: vocab, hidden, inner, q and kv (heads times head size), head.
        required: Whether the checkpoint must have it; a rule reads that from the configuration.
            A tensor that is there is used either way.
    """

    name: str
    role: str
    shape: tuple[str, ...]
    required: bool | Callable[[Config], bool] = True

    @property
    def is_per_layer(self) -> bool:
        """Whether every layer has one."""
        return "{layer}" in self.name


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
        prefixes: What may stand in checkpoints where canonical names have `model.`.
        ignored: Patterns of tensors that are not weights (computed when the model is loaded).
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
    model_types: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = (BODY, "")
    ignored: tuple[str, ...] = (
        r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$",
        r".*\.self_attn\.(bias|masked_bias)$",
    )


def read_block(block: Block, config: Config) -> dict[str, object]:
    """The fields of a typed block, with every rule read from the configuration."""
    return {key: rule(config) if callable(rule) else rule for key, rule in block.items()}
