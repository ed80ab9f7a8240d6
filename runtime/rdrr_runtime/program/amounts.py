"""The base of all parts of a program, its hashes and numbers, which may grow with the context."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**53)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
Size = Annotated[int, Field(ge=1, lt=2**31)]
Word = Annotated[int, Field(ge=0, lt=2**32)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ProgramModel(BaseModel):
    """Base of all parts: immutable, without unknown fields and without conversions of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Growing(ProgramModel):
    """A number that is affine in the context: `min(value + growth * (context / multiple), most)`.

    Attributes:
        value: The number without any slots.
        growth: What `Contexts.multiple` slots add to it.
        most: Its largest value; None if it grows on.
    """

    value: int
    growth: int
    most: int | None = None

    def at(self, multiples: int) -> int:
        """Return the number at a context of this many multiples."""
        number = self.value + self.growth * multiples
        return number if self.most is None else min(number, self.most)


Amount = Count | Growing
