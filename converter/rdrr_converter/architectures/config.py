"""Typed access to config.json with defaults, with errors that name the key.

A `Config` records which keys were read, so that a key that nobody reads can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from rdrr_format.errors import ConversionError, SourceError

MAX_LAYERS = 4096
"""Layers of a model at most; published ones have up to 200. Rules make lists of this length before
the tensors of a checkpoint are known."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_erf",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
"""Names of activations in configurations and in the manifest, where `gelu` is the tanh form."""

STATED_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""The names that an export writes, by the manifest's: the first of those with one meaning."""


class Config:
    """A checkpoint's configuration with the defaults of its architecture.

    Args:
        values: `config.json`, or the part of it that describes the text model.
        defaults: Values of absent keys, or functions of the configuration that return them. A key
            with the value `null` counts as present, unless its default is a function.
        where: The configuration's file, for messages.
        names: Names of keys in this configuration, by the usual names, where they differ.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, object],
        where: object,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.values = values
        self.where = where
        self._defaults = defaults
        self._names = names
        self._read: set[str] = set()
        self._parts: dict[str, Config] = {}

    def get(self, key: str) -> Any:
        """Return the value of a key, else its default, else None."""
        default = self._defaults.get(key)
        stated = key if self._names.get(key) not in self.values else self._names[key]
        self._read.add(stated)
        if self.values.get(key) == self.values.get(stated):  # both names may be stated
            self._read.add(key)
        if callable(default):
            value = self.values.get(stated)
            return default(self) if value is None else value
        return self.values.get(stated, default)

    def part(self, path: str, values: Mapping[str, Any]) -> Config:
        """Return the configuration of an object inside this one, the same one for each path.

        Args:
            path: Path of the object, which messages and `unread` use, such as `rope_parameters`.
            values: Content of the object.
        """
        if path not in self._parts:
            self._parts[path] = Config(values, {}, f"{self.where}, {path}")
        return self._parts[path]

    def unread(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the keys that were never read: path of the object, key, value.

        The path is empty for keys that are not inside another object.
        """
        yield from (("", key, value) for key, value in self.values.items() if key not in self._read)
        for path, part in self._parts.items():
            yield from ((path, key, value) for _, key, value in part.unread())

    def integer(self, key: str) -> int:
        """Return a positive whole number.

        Raises:
            SourceError: The value is absent or something else.
        """
        value = self.get(key)
        if type(value) is not int or value <= 0:
            raise self.fault(key, "a positive whole number", value)
        return value

    def number(self, key: str) -> float:
        """Return a positive number.

        Raises:
            SourceError: The value is absent or something else.
        """
        value = self.get(key)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self.fault(key, "a positive number", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Return a positive number, or None if the key is absent or null.

        Raises:
            SourceError: The value is something else.
        """
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """Return a truth value; false if the key is absent or null.

        Raises:
            SourceError: The value is something else.
        """
        value = self.get(key)
        if value is not None and type(value) is not bool:
            raise self.fault(key, "true or false", value)
        return bool(value)

    def fault(self, key: str, expected: str, found: object) -> SourceError:
        """Return the error for a key whose value is unusable."""
        shown = "nothing" if found is None else repr(found)
        return SourceError(
            f"{self._names.get(key, key)} cannot be used",
            where=self.where,
            expected=expected,
            found=shown,
        )

    def layer_count(self, key: str) -> int:
        """Return a number of layers, which may be 0.

        Raises:
            SourceError: The value is something else.
        """
        count = self.get(key)
        if type(count) is not int or count < 0:
            raise self.fault(key, "a number of layers", count)
        return count

    @property
    def layers(self) -> int:
        """Number of decoder layers.

        Raises:
            SourceError: It is no positive whole number, or more than `MAX_LAYERS`.
        """
        count = self.integer("num_hidden_layers")
        if count > MAX_LAYERS:
            raise self.fault("num_hidden_layers", f"at most {MAX_LAYERS}", count)
        return count

    @property
    def head_dim(self) -> int:
        """Head dimension; by default the hidden size divided by the number of heads."""
        if self.get("head_dim") is not None:
            return self.integer("head_dim")
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        if hidden % heads:
            raise self.fault("hidden_size", f"a multiple of {heads} heads", hidden)
        return hidden // heads

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads; by default that of query heads."""
        if self.get("num_key_value_heads") is None:
            return self.integer("num_attention_heads")
        return self.integer("num_key_value_heads")


def head_dim(config: Config) -> float:
    """Rule: the head dimension."""
    return float(config.head_dim)


Value = TypeVar("Value")


@dataclass(frozen=True)
class KeyRule(Generic[Value]):
    """Rule: the value of a key, which an export can write again.

    Attributes:
        keys: The key; several are names of one value.
        value: Reads the value.
        stored: Returns what a configuration states for a value of the manifest.
    """

    keys: tuple[str, ...]
    value: Callable[[Config], Value]
    stored: Callable[[Any], Any] = lambda value: value

    def __call__(self, config: Config) -> Value:
        """Return the value."""
        return self.value(config)


def number(key: str) -> KeyRule[float]:
    """Rule: a required number."""
    return KeyRule((key,), lambda config: config.number(key))


def optional_number(key: str) -> KeyRule[float | None]:
    """Rule: a number or None."""
    return KeyRule((key,), lambda config: config.optional_number(key))


def optional_integer(key: str) -> KeyRule[int | None]:
    """Rule: a whole number or None."""
    return KeyRule((key,), lambda config: None if config.get(key) is None else config.integer(key))


def window(key: str) -> KeyRule[int | None]:
    """Rule: the size of a sliding window; None if it is null or 0."""
    return KeyRule(
        (key,), lambda config: config.integer(key) if config.get(key) not in (None, 0) else None
    )


def integer(*keys: str) -> KeyRule[int]:
    """Rule: a required whole number, of which `keys` are several names with one value.

    Raises:
        SourceError: Two of the names have different values.
    """

    def read(config: Config) -> int:
        values = {key: config.integer(key) for key in keys if config.get(key) is not None}
        # A default is no statement: it counts only if no key is stated.
        chosen = {key: value for key, value in values.items() if key in config.values} or values
        if not chosen:
            return config.integer(keys[0])
        first = next(iter(chosen))
        for key, value in chosen.items():
            if value != chosen[first]:
                raise config.fault(key, f"{chosen[first]}, as {first} states", value)
        return chosen[first]

    return KeyRule(keys, read)


@dataclass(frozen=True)
class Flag:
    """Rule: a truth value.

    Unlike other rules it remembers its key, so that an export can write the flag if tensors depend
    on it.

    Attributes:
        key: Key of the configuration.
    """

    key: str

    def __call__(self, config: Config) -> bool:
        """Return the value; false if the key is absent."""
        return config.flag(self.key)


def flag(key: str) -> Flag:
    """Rule: a truth value."""
    return Flag(key)


def negated(key: str) -> KeyRule[bool]:
    """Rule: the opposite of a truth value."""
    return KeyRule((key,), lambda config: not config.flag(key), lambda value: not value)


def activation(*keys: str) -> KeyRule[str]:
    """Rule: the manifest's name of the activation in the first of `keys` with a value."""

    def read(config: Config) -> str:
        stated = [key for key in keys if config.get(key) is not None]
        key = stated[0] if stated else keys[0]
        name = config.get(key)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise ConversionError(
                f"the format cannot express this value of {key}",
                where=config.where,
                expected=", ".join(ACTIVATIONS),
                found=name,
            )
        return ACTIVATIONS[name]

    return KeyRule(keys, read, lambda name: STATED_ACTIVATIONS.get(name, name))
