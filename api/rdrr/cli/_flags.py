"""Flags of the command line, made from the fields of option classes.

A command takes an option object as a parameter:

    @with_flags
    def generate(path: PackagePath, load: LoadOptions, sampling: SamplingParams) -> int: ...

`with_flags` replaces such a parameter by one flag for each field of the class, and calls the
command with an object that is filled from the flags.
`Annotated[LoadOptions, Only("adapter", "context")]` restricts the flags to these fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from rdrr_format.options import Option, options_of, parse_size

from rdrr._units import spell_size
from rdrr.cli._invocation import READS_LOCATION

F = TypeVar("F", bound=Callable[..., int])

_SHORT: Mapping[str, tuple[str, ...]] = MappingProxyType({"--context": ("-c",)})
"""Short forms of flags that are made from fields."""


class Only:
    """A selection of fields of an option class, for commands that have flags for these only.

    Args:
        names: Names of the fields.
    """

    def __init__(self, *names: str) -> None:
        self.names = names


def with_flags(command: F) -> F:
    """Return the command with a flag for each field of the option objects that it takes."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type[Any], tuple[_Flag, ...]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        kind, only = _option_class(annotation)
        if kind is None:
            parameters.append(parameter.replace(annotation=annotation))
            continue
        flags = tuple(_flags(kind, only))
        groups[parameter.name] = kind, flags
        parameters += [flag.parameter() for flag in flags]

    @wraps(command)
    def run(**given: Any) -> int:
        for name, (kind, flags) in groups.items():
            given[name] = kind(**{flag.name: flag.read(given.pop(flag.name)) for flag in flags})
        return command(**given)

    # Keyword-only, because parameters without a default may follow flags that have one.
    signature = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters],
        return_annotation=int,
    )
    typed: Any = run
    typed.__signature__ = signature
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    typed.__annotations__ = annotations | {"return": int}
    result: F = typed
    return result


def _option_class(annotation: Any) -> tuple[type[Any] | None, Only | None]:
    only = None
    if get_origin(annotation) is Annotated:
        annotation, *details = get_args(annotation)
        only = next((detail for detail in details if isinstance(detail, Only)), None)
    if not (isinstance(annotation, type) and is_dataclass(annotation)):
        return None, only
    return annotation, only


def _flags(kind: type[Any], only: Only | None) -> Iterator[_Flag]:
    declared = options_of(kind)
    types = get_type_hints(kind)
    for field in fields(kind):
        option = declared.get(field.name)
        if option is None or option.python_only:
            continue
        if only is None or field.name in only.names:
            yield _Flag(option, types[field.name], _default(field))


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@dataclass(frozen=True)
class _Flag:
    """The flag of one field.

    Attributes:
        option: The declaration of the field.
        type: Type of the field.
        default: Default of the field.
    """

    option: Option
    type: Any
    default: Any

    @property
    def name(self) -> str:
        return self.option.name

    def parameter(self) -> inspect.Parameter:
        """Return the parameter from which typer makes the flag."""
        option, default = self.option, self._default_word()
        help_text = option.help
        if option.read_words is not None:
            help_text = f"{help_text.removesuffix('.')} (repeatable)."
        markers = (READS_LOCATION,) if option.metavar == "PATH" else ()
        info = typer.Option(
            option.flag,
            *_SHORT.get(option.flag, ()),
            help=help_text,
            metavar=option.metavar or ("SIZE" if option.in_bytes else None),
            min=None if option.in_bytes else option.minimum,
            max=None if option.in_bytes else option.maximum,
            case_sensitive=False,
            show_default=option.default_text or True,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[self._word_type(), info, *markers],
        )

    def read(self, word: Any) -> Any:
        """Return the value of the field from the parsed value of the flag."""
        if self.option.in_bytes:
            return None if word is None else parse_size(word)
        if self.option.read_words is not None:
            return self.option.read_words(word or ())
        return word

    def _default_word(self) -> Any:
        if self.option.in_bytes:
            return None if self.default is None else spell_size(self.default)
        return None if self.option.read_words is not None else self.default

    def _word_type(self) -> Any:
        option = self.option
        if option.read_words is not None:
            return list[str] | None
        optional = self.default is None
        if option.choices and not option.several:
            choices: Any = Literal[option.choices]
            return choices | None if optional else choices
        if option.in_bytes:
            return str | None if optional else str
        plain = next(member for member in _members(self.type) if member is not type(None))
        return plain | None if optional else plain


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the member types of a union, or the type itself."""
    return get_args(annotation) or (annotation,)
