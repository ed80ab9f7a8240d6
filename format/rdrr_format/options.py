"""Option objects: frozen dataclasses whose fields carry their own documentation and limits.

A field is declared once, with `option`. From there come its line in the class's documentation, the
flag of the command line with its help text, and the check of its value:

    @documented
    @dataclass(frozen=True, kw_only=True)
    class TeaOptions:
        '''How tea is made.'''

        minutes: float = option(3.0, "Time to steep.", minimum=0)

        def __post_init__(self) -> None:
            check_fields(self)

This module imports nothing heavy, since every command line is built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Largest count of tokens, sequences and the like."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is known about a field of an option object besides its type and default.

    Attributes:
        name: Name of the field.
        help: What it does, in one sentence.
        flag: How the command line spells it.
        metavar: What stands for its value in the help; None where the type says enough.
        choices: All values that it may have; empty where there is no such list.
        minimum: Smallest value.
        maximum: Largest value.
        expected: What `holds` demands, in words.
        holds: Whether a value is allowed.
        default_text: What the help shows as the default where the default itself says too little.
        in_bytes: It is a size, which people write with a unit.
        read_words: How the words of a repeatable flag become the value.
        python_only: The command line has no flag for it.
    """

    name: str = ""
    help: str
    flag: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    expected: str | None = None
    holds: Callable[[Any], bool] | None = None
    default_text: str | None = None
    in_bytes: bool = False
    read_words: Callable[[Sequence[str]], Any] | None = None
    python_only: bool = False


def option(default: T, help: str, *, flag: str = "", **details: Any) -> T:
    """Declare a field of an option object.

    Args:
        default: Its default; an empty mapping is made anew for each object.
        help: What it does, in one sentence that serves Python and the command line.
        flag: How the command line spells it, where that is not the name with dashes.
        details: Further attributes of `Option`.
    """
    metadata = {_KEY: {"help": help, "flag": flag, **details}}
    made: Any = (
        field(default_factory=dict, metadata=metadata)
        if default == {}
        else field(default=default, metadata=metadata)
    )
    found: T = made
    return found


def options_of(kind: type[Any]) -> dict[str, Option]:
    """The options that a class declares, by the names of its fields."""
    return {one.name: _option(one) for one in fields(kind) if _KEY in one.metadata}


def _option(declared: Field[Any]) -> Option:
    details: dict[str, Any] = dict(declared.metadata[_KEY])
    flag = details.pop("flag") or "--" + declared.name.replace("_", "-")
    return Option(name=declared.name, flag=flag, **details)


def documented(kind: type[T]) -> type[T]:
    """Add the fields' help to the documentation of an option class."""
    lines = [f"    {name}: {one.help}" for name, one in options_of(kind).items()]
    kind.__doc__ = "\n".join([(kind.__doc__ or "").rstrip(), "", "Attributes:", *lines])
    return kind


def check_fields(options: object) -> None:
    """Check each value against the type and the limits that its field declares.

    A choice may be given in any case; the field then holds it as the field's choices spell it.

    Raises:
        UsageError: A value that the field does not allow.
    """
    kind: Any = type(options)
    types = _types_of(kind)
    for name, one in options_of(type(options)).items():
        value = _respelled(one, getattr(options, name))
        object.__setattr__(options, name, value)
        if not _is_of(value, types[name]):
            raise UsageError(
                f"`{one.name}` has a value of the wrong type",
                expected=_spelled(types[name]),
                found=f"{shown(value)} ({type(value).__name__})",
            )
        if value is None:
            continue
        if one.choices and value not in one.choices:
            expected = ", ".join(one.choices)
            raise UsageError(f"`{one.name}` has no such value", expected=expected, found=value)
        if one.minimum is not None and not value >= one.minimum:
            raise _out_of_range(one, f"at least {one.minimum}", value)
        if one.maximum is not None and not value <= one.maximum:
            raise _out_of_range(one, f"at most {one.maximum}", value)
        if one.holds is not None and not one.holds(value):
            raise _out_of_range(one, one.expected, value)


def _respelled(one: Option, value: Any) -> Any:
    """Return a choice in the case that the option's table has, and any other value as it is."""
    if not (one.choices and isinstance(value, str)):
        return value
    return next((choice for choice in one.choices if choice.lower() == value.lower()), value)


def check_count(name: str, value: Any, *, minimum: int = 1, maximum: int = MAX_COUNT) -> None:
    """Check a whole number that is no field of an option object.

    Args:
        name: What it is, for messages.
        value: The number.
        minimum: Smallest value.
        maximum: Largest value.

    Raises:
        UsageError: It is none, or out of range.
    """
    if not _is_of(value, int):
        found = f"{shown(value)} ({type(value).__name__})"
        raise UsageError(f"{name} is not a whole number", expected="a whole number", found=found)
    if not minimum <= value <= maximum:
        expected = f"{minimum} to {maximum}"
        raise UsageError(f"{name} is out of range", expected=expected, found=shown(value))


def shown(value: object) -> str:
    """Return a value as a message shows it, whatever it is."""
    try:
        return repr(value)
    except Exception:  # of the caller's own class, or a number of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"


@cache
def _types_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; True and False are no numbers."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_of(value, one) for one in inner)
    if origin is Literal:  # which of the words are allowed is what `choices` says
        return isinstance(value, str)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _is_of(key, inner[0]) and _is_of(entry, inner[1]) for key, entry in value.items()
        )
    numbers = {int: Integral, float: Real}
    if kind in numbers:
        return isinstance(value, numbers[kind]) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def _spelled(kind: Any) -> str:
    """Return a field's type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_spelled, inner))
    if origin is Literal:
        return "a string"
    if origin is Mapping:
        return f"a mapping of {_spelled(inner[0])} to {_spelled(inner[1])}"
    words = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}
    return words.get(kind, "None" if kind is type(None) else getattr(kind, "__name__", str(kind)))


def _out_of_range(one: Option, expected: str | None, value: object) -> UsageError:
    return UsageError(f"`{one.name}` is out of range", expected=expected, found=value)


def fill(kind: type[T], given: T | None, keywords: Mapping[str, Any], *, parameter: str) -> T:
    """Return the option object that a caller gave, or fill one from the caller's keywords.

    Args:
        kind: Its class.
        given: The object, if the caller gave one.
        keywords: Fields by name, if the caller gave those; None stands for the default.
        parameter: Name of the parameter that takes the object, for messages.

    Raises:
        UsageError: Both were given, a keyword is no field, or a value is not allowed.
    """
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            raise UsageError(
                f"{kind.__name__} has no option of this name",
                expected=", ".join(names),
                found=name,
                hint=f"did you mean {close[0]}?" if close else None,
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
    """Read `KEY=VALUE` words as a mapping.

    Args:
        words: The words.
        what: What a word is, for messages.

    Raises:
        UsageError: A word without `=`, or a key that is given twice.
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
