"""Preferences: what the hints of a run and the defaults of its adapter ask for.

This module interprets hints, for example whether products use int8 activations. It does not know
which kernels can serve an op.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_runtime.compile.choice.decision import Reason, Unmet
from rdrr_runtime.compile.choice.hints import Hint, Policy


@dataclass(frozen=True)
class Arithmetic:
    """The choice between int8 and float activations in products with some type of weights.

    Attributes:
        int8: Whether they use int8 activations where a kernel supports it.
        source: The hint or the default that decides.
        hint: The hint that decides; None if it is a default.
        overruled: A weaker hint that asked for the opposite.
    """

    int8: bool
    source: str
    hint: Hint | None = None
    overruled: Unmet | None = None


@dataclass(frozen=True)
class Preferences:
    """The hints of a run, and the defaults of its adapter.

    Attributes:
        policy: The hints.
        software: Whether the adapter is a software adapter, which runs on the CPU.
        int8_dots: Whether kernels may multiply signed bytes, see `OpContext.int8_dots`.
    """

    policy: Policy
    software: bool
    int8_dots: bool = True

    def hint(self, key: str) -> Hint | None:
        """Return the hint of a key; None if no source sets it."""
        return self.policy.get(key)

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of products with quantized weights."""
        adapter = "a software adapter" if self.software else "a hardware adapter"
        if not self.int8_dots:
            adapter = "an adapter without int8 dot products"
        default = Arithmetic(self.int8_dots and not self.software, f"auto on {adapter}")
        return self._hinted("q4kMatmul", "fused_q4k_int8") or default

    @property
    def scalar_arithmetic(self) -> Arithmetic:
        """The arithmetic of products with 16-bit and 32-bit weights, which only a hint rounds."""
        return self._hinted("f16Matmul", "int8") or Arithmetic(False, "auto")

    def _hinted(self, key: str, int8: str) -> Arithmetic | None:
        """Return the arithmetic that hints ask for; None if there is no hint.

        Args:
            key: The hint for the type of the weights.
            int8: Its value that asks for int8.
        """
        matmul, precision = self.hint(key), self.hint("computePrecision")
        asked = matmul is not None and matmul.value == int8
        if precision and not (asked and matmul and matmul.outranks(precision)):
            overruled = None
            if asked and matmul and not precision.outranks(matmul):
                overruled = Unmet(matmul, f"{precision} excludes int8")
            return Arithmetic(False, str(precision), precision, overruled)
        return Arithmetic(asked, str(matmul), matmul) if matmul else None

    @property
    def joins_feed_forwards(self) -> bool:
        """Whether gate, up and down of one row are one phase where a kernel can serve all.

        A processor takes twice as long so: it reads single units of many rows slowly.
        """
        return not self.software

    def activations(self, features: frozenset[str]) -> tuple[str, Reason]:
        """Return the type of the activations between ops, `f32` or `f16`, and why."""
        hint = self.hint("computePrecision")
        if hint is None:
            return "f32", Reason("f32 (auto): the type that kernels compute in")
        obstacle = ""
        if hint.value == "f16" and "shader-f16" not in features:
            obstacle = "the device has no feature shader-f16"
        elif hint.value == "f16":
            rounded = (self.arithmetic, self.scalar_arithmetic)
            obstacle = next(
                (f"{it.source} asks for int8 activations" for it in rounded if it.int8), ""
            )
        if not obstacle:
            return hint.value, Reason(f"{hint.value} ({hint})")
        said = f"f32; {hint} is not honoured: {obstacle}"
        return "f32", Reason(said, Unmet(hint, obstacle))
