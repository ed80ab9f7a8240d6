"""Finding a tensor by its part in the model, whatever prefix its writer chose."""

from __future__ import annotations

from collections.abc import Collection

PREFIXES = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "model.text_model.",
    "transformer.",
    "",
)
"""What stands before `layers.0...` in packages seen so far, the usual one first."""


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

    def head(self) -> str | None:
        """Name of the output head's own tensor, if there is one."""
        candidates = (
            "lm_head.weight",
            "language_model.lm_head.weight",
            self.body("lm_head.weight"),
        )
        return next((name for name in candidates if name in self._names), None)

    def __contains__(self, name: str) -> bool:
        return name in self._names
