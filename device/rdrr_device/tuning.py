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
"""What parameters are tuned of; the first word of a site's key."""


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
class Site(Generic[P]):
    """A choice of parameters: one kernel on one shape.

    Attributes:
        key: Op, kernel, shape, and what of the device changes the kernel.
        default: What runs where nothing was tuned.
        used: What runs.
        candidates: What else could run here.
    """

    key: str
    default: P
    used: P
    candidates: tuple[P, ...]

    @property
    def op(self) -> str:
        """One of `OPS`."""
        return self.key.partition(" ")[0]

    @property
    def is_tuned(self) -> bool:
        """Whether other parameters than the default are in force."""
        return self.used != self.default


@dataclass(frozen=True)
class Tuning:
    """Stored parameters.

    Attributes:
        entries: Names and values of parameters by the key of their site.
    """

    entries: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def having(self, key: str, params: Params) -> Tuning:
        """This with other parameters for one site."""
        return Tuning(MappingProxyType({**self.entries, key: params.as_dict()}))

    def without(self, keys: Iterable[str]) -> Tuning:
        """This with the defaults for some sites."""
        gone = set(keys)
        kept = {key: entry for key, entry in self.entries.items() if key not in gone}
        return Tuning(MappingProxyType(kept))

    def site(self, key: str, default: P, candidates: Iterable[P]) -> Site[P]:
        """The parameters for a site: what is stored, if it is one of those that could run there."""
        others = tuple(one for one in dict.fromkeys(candidates) if one != default)
        stored = self.entries.get(key)
        used = default
        if stored is not None:
            used = next((one for one in others if one.as_dict() == dict(stored)), default)
        return Site(key, default, used, others)


AnySite = Site[Any]
