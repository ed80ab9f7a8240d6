"""The flags of the decoding strategies, made from the fields of their option classes.

Each strategy of the table `STRATEGIES` adds its flags here; each flag belongs to one strategy.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, make_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from rdrr_format.errors import UsageError
from rdrr_format.options import Option, option, options_of
from rdrr_runtime.decode.strategies import AUTOREGRESSIVE, STRATEGIES
from rdrr_runtime.decode.strategy import StrategyOptions

from rdrr.cli._wording import flags_of_options, reword

T = TypeVar("T")
NONE = "none"
"""Value of a flag that stands for None, for options whose default is not None."""


def _with_flags_of_strategies(kind: type[T]) -> type[T]:
    """Add a field for each option of each strategy; its value is None when the flag is omitted."""
    which = option(AUTOREGRESSIVE, _which(), choices=(AUTOREGRESSIVE, *STRATEGIES))
    flags: list[tuple[str, Any, Any]] = [("decode", str, which)]
    flags += [
        (_parameter(declared), _word_type(options, declared) | None, _flag(name, options, declared))
        for name, options in STRATEGIES.items()
        for declared in options_of(options).values()
    ]
    return make_dataclass(kind.__name__, flags, bases=(kind,), frozen=True, kw_only=True)


def _which() -> str:
    """Return the help of `--decode`: the first line of each strategy's docstring."""
    lines = [f"{name}: {_first_line(options)}" for name, options in STRATEGIES.items()]
    return f"Decoding strategy. {AUTOREGRESSIVE}: one token per pass. {' '.join(lines)}"


def _first_line(options: type[StrategyOptions]) -> str:
    line = (options.__doc__ or "").splitlines()[0]
    return f"{line[0].lower()}{line[1:]}"


def _parameter(declared: Option) -> str:
    """Return the name of the parameter for a flag; it is unique among all strategies."""
    return "decode_" + declared.flag.removeprefix("--").replace("-", "_")


def _flag(name: str, options: type[StrategyOptions], declared: Option) -> Any:
    default = _default(options, declared.name)
    return option(
        None,
        f"{name}: {declared.help[0].lower()}{declared.help[1:]}",
        flag=declared.flag,
        metavar=declared.metavar,
        choices=declared.choices,
        default_text=None if default is None else str(default),
    )


def _default(options: type[StrategyOptions], name: str) -> Any:
    value = {entry.name: entry.default for entry in fields(options)}[name]  # type: ignore[arg-type]
    assert value is not MISSING, "each option of a strategy has a default"
    return value


def _word_type(options: type[StrategyOptions], declared: Option) -> Any:
    """Return the type that the command line parses: str if `none` is allowed, else the field's."""
    annotation = get_type_hints(options)[declared.name]
    members = [member for member in get_args(annotation) or (annotation,) if member is not NoneType]
    takes_none = NoneType in get_args(annotation) and _default(options, declared.name) is not None
    return str if takes_none or declared.choices or str in members else members[0]


@_with_flags_of_strategies
class DecodeFlags:
    """The requested strategy and its options; an option is None when its flag is omitted."""

    decode: str

    def read(self) -> StrategyOptions | None:
        """Return the options of the strategy; None for autoregressive decoding.

        Raises:
            UsageError: A flag belongs to another strategy, or its value is not a number.
        """
        given: dict[str, Any] = {}
        for name, options in STRATEGIES.items():
            for declared in options_of(options).values():
                word = getattr(self, _parameter(declared))
                if word is None:
                    continue
                if name != self.decode:
                    raise UsageError(f"{declared.flag} is an option of --decode {name}")
                given[declared.name] = _value(options, declared, word)
        if self.decode not in STRATEGIES:
            return None
        options = STRATEGIES[self.decode]
        try:
            return options(**given)
        except UsageError as error:
            raise reword(error, flags_of_options(options)) from None


def _value(options: type[StrategyOptions], declared: Option, word: Any) -> Any:
    """Return the value of a field from the parsed value of its flag."""
    annotation = get_type_hints(options)[declared.name]
    members = get_args(annotation) or (annotation,)
    if not isinstance(word, str) or str in members or declared.choices:
        return word
    if word == NONE:
        return None
    number = next(member for member in members if member is not NoneType)
    try:
        return number(word)
    except ValueError:
        expected = f"a number, or {NONE}"
        raise UsageError(
            f"{declared.flag} is not a number", expected=expected, found=word
        ) from None
