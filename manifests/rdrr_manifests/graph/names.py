"""Finding a tensor by its part in the model, whatever prefix its writer chose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PREFIXES = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "model.text_model.",
    "transformer.",
    "",
)
"""What stands before `layers.0...` in packages seen so far, the usual one first."""


@dataclass(frozen=True)
class ExpertNames:
    """How a family of checkpoints calls the parts of a layer with experts.

    Attributes:
        router: The router's matrix.
        gate: An expert's gate projection, `{expert}` for its number; so are the two after.
    """

    router: str
    gate: str
    up: str
    down: str

    def expert(self, number: int) -> tuple[str, str, str]:
        """Names of an expert's gate, up and down projections, without `.weight`."""
        gate, up, down = (part.format(expert=number) for part in (self.gate, self.up, self.down))
        return gate, up, down


EXPERT_NAMES = (
    ExpertNames(
        "mlp.gate",
        "mlp.experts.{expert}.gate_proj",
        "mlp.experts.{expert}.up_proj",
        "mlp.experts.{expert}.down_proj",
    ),
    ExpertNames(
        "block_sparse_moe.gate",
        "block_sparse_moe.experts.{expert}.w1",
        "block_sparse_moe.experts.{expert}.w3",
        "block_sparse_moe.experts.{expert}.w2",
    ),
)
"""Qwen's spelling and Mixtral's."""


class TensorNames:
    """The names of one package.

    Args:
        names: Every tensor name of the package.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._prefix = next(
            (p for p in PREFIXES if f"{p}embed_tokens.weight" in self._names), PREFIXES[0]
        )

    @property
    def prefix(self) -> str:
        """What stands before `layers.0...` in this package."""
        return self._prefix

    def body(self, part: str) -> str:
        """Full name of a tensor of the model's body, present or not."""
        return f"{self._prefix}{part}"

    def layer(self, index: int, part: str) -> str:
        """Full name of a tensor of a layer, present or not."""
        return f"{self._prefix}layers.{index}.{part}"

    def experts(self, layer: int) -> ExpertNames | None:
        """How this layer's experts are called; None for a layer without."""
        return next(
            (one for one in EXPERT_NAMES if self.layer(layer, f"{one.router}.weight") in self), None
        )

    def head(self) -> str | None:
        """Name of the output head's own tensor, if there is one."""
        candidates = (
            "lm_head.weight",
            "language_model.lm_head.weight",
            self.body("lm_head.weight"),
        )
        return next((name for name in candidates if name in self._names), None)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names
