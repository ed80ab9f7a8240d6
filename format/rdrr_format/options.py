"""Option objects: frozen dataclasses whose fields carry their help texts and limits.

A field is declared once, with `option`. Its line in the class's docstring, the flag of the command
line with its help text, and the check of its value are all derived from that declaration:

    @documented
    @dataclass(frozen=True, kw_only=True)
    class TeaOptions:
        '''How tea is made.'''

        minutes: float = option(3.0, "Time to steep.", minimum=0)

        def __post_init__(self) -> None:
            check_fields(self)

This module imports nothing heavy, because every command line is built from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rdrr_format.errors import UsageError

T = TypeVar("T")
_KEY = "rdrr option"

MAX_COUNT = 2**31 - 1
"""Largest value of a count, for example of tokens or sequences."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field of an option object declares besides its type and default.

    Attributes:
        name: Name of the field.
        help: What the option does, in one sentence.
        flag: Name of the flag on the command line.
        metavar: Placeholder for the value in the help; None if the type is clear enough.
        choices: All allowed values; empty if any value of the type is allowed.
        several: Whether several choices may be joined by commas.
        minimum: Smallest value.
        maximum: Largest value.
        expected: The condition that `holds` checks, in words.
        holds: Function that returns whether a value is allowed.
        default_text: What the help shows as the default, if the default itself does not explain it.
        in_bytes: Whether the value is a size, which users write with a unit.
        read_words: Function that turns the values of a repeatable flag into the option's value.
        python_only: Whether the option exists in Python only, without a flag.
        also_known_as: Names of the option in other programs, for suggestions.
    """

    name: str = ""
    help: str
    flag: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    several: bool = False
    minimum: float | None = None
    maximum: float | None = None
    expected: str | None = None
    holds: Callable[[Any], bool] | None = None
    default_text: str | None = None
    in_bytes: bool = False
    read_words: Callable[[Sequence[str]], Any] | None = None
    python_only: bool = False
    also_known_as: tuple[str, ...] = ()


def option(default: T, help: str, *, flag: str = "", **details: Any) -> T:
    """Declare a field of an option object.

    Args:
        default: Default value; for an empty mapping each object gets a new one.
        help: What the option does, in one sentence for both Python and the command line.
        flag: Name of the flag, if it is not the field's name with dashes.
        details: Further attributes of `Option`.
    """
    metadata = {_KEY: {"help": help, "flag": flag, **details}}
    declared: Any = (
        field(default_factory=dict, metadata=metadata)
        if default == {}
        else field(default=default, metadata=metadata)
    )
    typed: T = declared
    return typed


def options_of(kind: type[Any]) -> Mapping[str, Option]:
    """Return the options that a class declares, by the names of the fields."""
    declaring: Any = kind  # classes have hashes, which mypy does not know
    return _options_of(declaring)


@cache
def _options_of(kind: Any) -> Mapping[str, Option]:
    return {entry.name: _option(entry) for entry in fields(kind) if _KEY in entry.metadata}


def _option(declared: Field[Any]) -> Option:
    details: dict[str, Any] = dict(declared.metadata[_KEY])
    flag = details.pop("flag") or "--" + declared.name.replace("_", "-")
    return Option(name=declared.name, flag=flag, **details)


def documented(kind: type[T]) -> type[T]:
    """Add the fields' help texts to the docstring of an option class."""
    lines = [f"    {name}: {declared.help}" for name, declared in options_of(kind).items()]
    kind.__doc__ = "\n".join([(kind.__doc__ or "").rstrip(), "", "Attributes:", *lines])
    return kind


def check_fields(options: object) -> None:
    """Check every value of an option object against the type and limits of its field.

    A choice may be given in any case; the field then holds it as the field's choices spell it, and
    several of them in the order of the choices. A size may be given with a unit, as text; the field
    then holds the bytes.

    Raises:
        UsageError: A field does not allow its value.
    """
    kind: Any = type(options)
    types = _types_of(kind)
    for name, declared in options_of(type(options)).items():
        value = _respelled(declared, getattr(options, name))
        object.__setattr__(options, name, value)
        if not _is_of(value, types[name]):
            raise UsageError(
                f"`{declared.name}` has a value of the wrong type",
                expected=_type_in_words(types[name]),
                found=f"{shown(value)} ({type(value).__name__})",
            )
        if value is None:
            continue
        if declared.choices and not _words(declared, value) <= set(declared.choices):
            expected = ", ".join(declared.choices) + ", or several" * declared.several
            raise UsageError(f"`{declared.name}` has no such value", expected=expected, found=value)
        if declared.minimum is not None and not value >= declared.minimum:
            raise _out_of_range(declared, f"at least {declared.minimum}", value)
        if declared.maximum is not None and not value <= declared.maximum:
            raise _out_of_range(declared, f"at most {declared.maximum}", value)
        if declared.holds is not None and not declared.holds(value):
            raise _out_of_range(declared, declared.expected, value)


def _respelled(declared: Option, value: Any) -> Any:
    """Return a choice in the case of its table, a size in bytes, and others as they are."""
    if declared.in_bytes and isinstance(value, str):
        return parse_size(value, f"`{declared.name}` is not a size")
    if not (declared.choices and isinstance(value, str)):
        return value
    words = {word.lower() for word in _words(declared, value)}
    known = [choice for choice in declared.choices if choice.lower() in words]
    return ",".join(known) if len(known) == len(words) else value


def _words(declared: Option, value: str) -> set[str]:
    """Return the choices that a value joins; the value itself where only one may be made."""
    return {word.strip() for word in value.split(",")} if declared.several else {value}


_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


def parse_size(text: str, message: str = "not a size") -> int:
    """Return the number of bytes that a text like `64MiB`, `1.5 GB` or `4096` stands for.

    Args:
        text: The text.
        message: What an error says.

    Raises:
        UsageError: The text is not a positive size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    factor = _FACTORS.get(match[2]) if match else None
    size = int(float(match[1]) * factor) if match and factor else 0
    if size < 1:
        raise UsageError(message, expected="a size like 64MiB, 1GB or 4096", found=text)
    return size


def check_count(name: str, value: Any, *, minimum: int = 1, maximum: int = MAX_COUNT) -> None:
    """Check a whole number that is not a field of an option object.

    Args:
        name: Name of the number, for error messages.
        value: The number.
        minimum: Smallest value.
        maximum: Largest value.

    Raises:
        UsageError: The value is not a whole number, or out of range.
    """
    if not _is_of(value, int):
        actual = f"{shown(value)} ({type(value).__name__})"
        raise UsageError(f"{name} is not a whole number", expected="a whole number", found=actual)
    if not minimum <= value <= maximum:
        expected = f"{minimum} to {maximum}"
        raise UsageError(f"{name} is out of range", expected=expected, found=shown(value))


def shown(value: object) -> str:
    """Return a value as text for a message, also if it cannot be printed."""
    try:
        return repr(value)
    except Exception:  # a caller's own class, or an integer too long for Python to print
        return f"a {type(value).__name__} that cannot be shown"


@cache
def _types_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of a field's type; True and False do not count as numbers."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_of(value, member) for member in inner)
    if origin is Literal:  # which of the words are allowed is what `choices` says
        return isinstance(value, str)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _is_of(key, inner[0]) and _is_of(entry, inner[1]) for key, entry in value.items()
        )
    if origin is tuple:  # of any length; a list is as good
        return isinstance(value, (tuple, list)) and all(_is_of(entry, inner[0]) for entry in value)
    numbers = {int: Integral, float: Real}
    if kind in numbers:
        return isinstance(value, numbers[kind]) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def _type_in_words(kind: Any) -> str:
    """Return a field's type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_type_in_words, inner))
    if origin is Literal:
        return "a string"
    if origin is Mapping:
        return f"a mapping of {_type_in_words(inner[0])} to {_type_in_words(inner[1])}"
    if origin is tuple:
        return f"a sequence of which each entry is {_type_in_words(inner[0])}"
    words = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}
    return words.get(kind, "None" if kind is type(None) else getattr(kind, "__name__", str(kind)))


def _out_of_range(declared: Option, expected: str | None, value: object) -> UsageError:
    return UsageError(f"`{declared.name}` is out of range", expected=expected, found=value)


_NEAR = 0.65
"""Ratio of equal letters from which names are near: "stream" has 0.6 in common with "temp"."""


def nearest(name: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return the known name that an unknown one probably means; empty if none is near.

    Args:
        name: What was given.
        names: The known names.
        synonyms: Known names by names that other programs use.
    """
    known = {_bare(entry): entry for entry in names}
    meant = {_bare(other): entry for other, entry in (synonyms or {}).items()} | known
    near = get_close_matches(_bare(name), meant, n=1, cutoff=_NEAR)
    return meant[near[0]] if near else ""


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def suggestion(name: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return "did you mean ...?" for an unknown name; empty if no name is near."""
    near = nearest(name, names, synonyms)
    return f"did you mean {near}?" if near else ""


def fill(
    kind: type[T],
    given: T | None,
    keywords: Mapping[str, Any],
    *,
    parameter: str,
    beside: Mapping[str, Sequence[str]] | None = None,
) -> T:
    """Return the option object that a caller passed, or make one from the caller's keywords.

    Args:
        kind: Class of the option object.
        given: The object, if the caller passed one.
        keywords: Values by field name, if the caller passed those; None stands for the default.
        parameter: Name of the parameter for the object, for error messages.
        beside: Keywords of the function that are not fields, each with its names in other programs,
            for suggestions.

    Raises:
        UsageError: Both were passed, a keyword is not a field, or a value is not allowed.
    """
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in names:
            also: dict[str, Sequence[str]] = dict(beside or {})
            known = (*also, *names)
            also |= {entry.name: entry.also_known_as for entry in options_of(kind).values()}
            synonyms = {other: entry for entry, others in also.items() for other in others}
            raise UsageError(
                "there is no keyword of this name",
                expected=", ".join(known),
                found=name,
                hint=suggestion(name, known, synonyms) or None,
            )
    stated = {name: value for name, value in keywords.items() if value is not None}
    if given is None:
        return kind(**stated)
    if stated:
        raise UsageError(
            f"options were given twice, in {parameter}=... and by keyword",
            expected=f"{parameter}={kind.__name__}(...) or keywords",
            found=", ".join(stated),
            hint=f"put the keywords into the {kind.__name__}",
        )
    return given


def split_pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """Parse `KEY=VALUE` words to a mapping.

    Args:
        words: The words.
        what: What a word stands for, for error messages.

    Raises:
        UsageError: A word has no `=`, or a key is given twice.
    """
    pairs: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator:
            raise UsageError(f"not a {what}", expected="KEY=VALUE", found=word)
        if key in pairs:
            raise UsageError(f"{what} given twice", found=key)
        pairs[key] = value
    return pairs
