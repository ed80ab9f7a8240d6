"""Parameters that a kernel may be run with, and which of them are in force for which shape.

A parameter changes how fast a kernel is, never what it computes: workgroup sizes, tiles, parts of a
sum. Each kernel's module names its parameters, its defaults and its candidates; here they only meet
what was stored for a shape. Measuring them is the business of `rdrr_runtime.measure.tuner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

OPS = ("matmul", "attention", "softmax", "norm", "dequant")
"""What parameters are tuned of; the first word of a tuning key's name."""


@dataclass(frozen=True)
class Params:
    """Parameters of one kernel; subclasses add whole numbers."""

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.as_dict().items())


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class TuningKey(Generic[P]):
    """A choice of parameters: those of one kernel on one shape.

    Attributes:
        name: Op, kernel, shape, and what of the device changes the kernel.
        default: What runs where nothing was tuned.
        used: What runs.
        candidates: What else could run here.
    """

    name: str
    default: P
    used: P
    candidates: tuple[P, ...]

    @property
    def op(self) -> str:
        """One of `OPS`."""
        return self.name.partition(" ")[0]

    @property
    def is_tuned(self) -> bool:
        """Whether other parameters than the default are in force."""
        return self.used != self.default


@dataclass(frozen=True)
class Tuning:
    """Stored parameters.

    Attributes:
        entries: Names and values of parameters by the name of their tuning key.
    """

    entries: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def with_params(self, name: str, params: Params) -> Tuning:
        """Return this with other parameters for one tuning key."""
        return Tuning(MappingProxyType({**self.entries, name: params.as_dict()}))

    def without(self, names: Iterable[str]) -> Tuning:
        """Return this with the defaults for some tuning keys."""
        gone = set(names)
        kept = {name: entry for name, entry in self.entries.items() if name not in gone}
        return Tuning(MappingProxyType(kept))

    def tuning_key(self, name: str, default: P, candidates: Iterable[P]) -> TuningKey[P]:
        """Return a tuning key with what is stored for it, if that is among what could run there."""
        others = tuple(one for one in dict.fromkeys(candidates) if one != default)
        stored = self.entries.get(name)
        used = default
        if stored is not None:
            used = next((one for one in others if one.as_dict() == dict(stored)), default)
        return TuningKey(name, default, used, others)


AnyTuningKey = TuningKey[Any]
