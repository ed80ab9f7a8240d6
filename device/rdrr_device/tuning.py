"""Tuning parameters of kernels, and which of them are in force for a shape.

A tuning parameter changes how fast a kernel is, never what it computes: workgroup sizes, tiles,
splits of a sum. The module of each kernel defines its parameters, their defaults and the
candidates; this module combines them with the values stored for a shape. They are measured by
`rdrr_runtime.measure.tuner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypeVar

OPS = ("matmul", "attention", "softmax", "norm", "dequant")
"""The kinds of kernels that have tuning parameters; the first word of a tuning key's name."""


@dataclass(frozen=True)
class Params:
    """Tuning parameters of one kernel; subclasses add integer fields."""

    def as_dict(self) -> dict[str, int]:
        """Return the parameters by name."""
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.as_dict().items())


@dataclass(frozen=True)
class Workgroup(Params):
    """The tuning parameter of kernels that have no other.

    Attributes:
        workgroup: Threads of a workgroup.
    """

    workgroup: int


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class TuningKey(Generic[P]):
    """The tuning parameters of one kernel on one shape.

    Attributes:
        name: Op, kernel, shape, and the features of the device that change the kernel.
        default: Parameters used if nothing was tuned.
        used: Parameters in force.
        possible: The parameters that the kernel could run with here; read once, by `candidates`.
    """

    name: str
    default: P
    used: P
    possible: Iterable[P] = field(compare=False, repr=False)

    @cached_property
    def candidates(self) -> tuple[P, ...]:
        """The other parameters that the kernel could run with here.

        They are listed when they are asked for: a load needs few of them, and each is a check of
        what fits the device.
        """
        return tuple(params for params in dict.fromkeys(self.possible) if params != self.default)

    @property
    def op(self) -> str:
        """One of `OPS`."""
        return self.name.partition(" ")[0]

    @property
    def is_tuned(self) -> bool:
        """Whether the parameters in force differ from the default."""
        return self.used != self.default


@dataclass(frozen=True)
class Tuning:
    """Stored tuning parameters.

    Attributes:
        entries: For the name of each tuning key, its parameters by name.
    """

    entries: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def with_params(self, name: str, params: Params) -> Tuning:
        """Return a copy with the given parameters for one tuning key."""
        return Tuning(MappingProxyType({**self.entries, name: params.as_dict()}))

    def without(self, names: Iterable[str]) -> Tuning:
        """Return a copy in which some tuning keys have their defaults again."""
        gone = set(names)
        others = {name: entry for name, entry in self.entries.items() if name not in gone}
        return Tuning(MappingProxyType(others))

    def tuning_key(self, name: str, default: P, candidates: Iterable[P]) -> TuningKey[P]:
        """Return a tuning key with the stored parameters in force, if they are candidates.

        Args:
            name: Name of the key.
            default: Parameters used if none are stored, or if those stored are no candidates.
            candidates: Parameters that the kernel could run with on this device and shape.
        """
        stored = self.entries.get(name)
        if stored is None:
            return TuningKey(name, default, default, candidates)
        possible, values = tuple(candidates), dict(stored)
        used = next((params for params in possible if params.as_dict() == values), default)
        return TuningKey(name, default, used, possible)


AnyTuningKey = TuningKey[Any]
