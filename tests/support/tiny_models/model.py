"""One architecture with sizes small enough for a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VOCAB = 384
UNGATED = (
    "nemotron_h",
    "mamba2",
    "apertus",
    "arcee",
    "falcon",
    "gpt2",
    "gpt_neox",
    "nemotron",
    "opt",
    "phi",
    "starcoder2",
)


@dataclass(frozen=True)
class TinyModel:
    """One architecture with sizes small enough for a test.

    Attributes:
        model_type: transformers' name of the configuration.
        hidden: Hidden size, which is the inner dimension K of most matrix products.
        options: Further configuration keys.
        least_layers: Fewest layers that show all of the architecture's features.
        omitted: Usual configuration keys that the architecture lacks.
    """

    model_type: str
    hidden: int = 256
    options: tuple[tuple[str, Any], ...] = ()
    least_layers: int = 1
    omitted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model_type}-{self.hidden}"

    @property
    def can_fuse(self) -> bool:
        """Return whether gate and up can be fused: there is a gate, and no bias."""
        return self.model_type not in UNGATED and not dict(self.options).get("mlp_bias")

    @property
    def has_experts(self) -> bool:
        """Return whether it is a mixture of experts."""
        return any("expert" in key for key, _ in self.options)

    @property
    def neutral_norm(self) -> float:
        """Return the norm weight that scales by one: 0 for Gemma, whose norms multiply by 1 + w."""
        if self.model_type.startswith(("gemma4", "gemma3n")):
            return 1.0
        return 0.0 if "gemma" in self.model_type or self.model_type == "nemotron" else 1.0
