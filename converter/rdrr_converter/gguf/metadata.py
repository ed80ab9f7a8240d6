"""The metadata of a GGUF: values of one architecture by their keys, with checks of their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from rdrr_format.errors import ConversionError, SourceError

_ROUNDING = 1e-6
"""Relative rounding of a float32, and of the formula whose value it is."""


class GgufMetadata:
    """The metadata keys of one architecture, which remembers those that were read.

    Args:
        values: Metadata of the file.
        name: `general.architecture`, with which the keys begin.
        where: The file, for messages.
        per_layer: Keys of sizes that may differ between layers.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        name: str,
        where: object,
        per_layer: tuple[str, ...] = (),
    ) -> None:
        self._values, self._name, self.where = values, name, where
        self._per_layer = per_layer
        self._read: set[str] = set()

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Yield the keys of the architecture that were never read, and their values."""
        prefix = f"{self._name}."
        for name, value in self._values.items():
            key = name.removeprefix(prefix)
            if name.startswith(prefix) and key not in self._read:
                yield key, value

    def accept(self, key: str, value: float) -> bool:
        """Return whether a key has this value, up to rounding; then it counts as read."""
        stated = self._values.get(f"{self._name}.{key}")
        is_same = isinstance(stated, int | float) and isclose(stated, value, rel_tol=_ROUNDING)
        if is_same:
            self._read.add(key)
        return is_same

    def get(self, key: str) -> Any:
        """Return a value, or None if the key is missing."""
        self._read.add(key)
        return self._values.get(f"{self._name}.{key}")

    def anywhere(self, name: str) -> Any:
        """Return the value of a key that belongs to no architecture, or None if it is missing."""
        return self._values.get(name)

    def uniform(self, key: str) -> Any:
        """Return a value, which may be stated per layer if it is the same for all of them."""
        value = self.get(key)
        if not isinstance(value, list):
            return value
        if len(set(map(str, value))) != 1:
            raise ConversionError(
                "layers of different sizes cannot be converted",
                where=f"{self.where}, {self._name}.{key}",
                expected="one value",
                found=value[:8],
            )
        return value[0]

    def of_layers(self, key: str) -> Any:
        """Return a value, the first one of a key whose value may differ between layers."""
        value = self.get(key)
        is_list = key in self._per_layer and isinstance(value, list) and bool(value)
        return value[0] if is_list else self.uniform(key)

    def size(self, key: str, maximum: int = 2**31) -> int:
        """Return a positive integer of at most `maximum`."""
        value = self.uniform(key)
        if type(value) is not int or not 0 < value <= maximum:
            raise SourceError(
                "impossible size",
                where=f"{self.where}, {self._name}.{key}",
                expected=f"a whole number from 1 to {maximum}",
                found="nothing" if value is None else value,
            )
        return value

    def number(self, key: str) -> float | None:
        """Return a positive number, or None if the key is missing."""
        value = self.uniform(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise SourceError(
                "impossible number",
                where=f"{self.where}, {self._name}.{key}",
                expected="a positive number",
                found=value,
            )
        return float(value)
