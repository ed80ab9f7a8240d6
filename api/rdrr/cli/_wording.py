"""Translation of messages: the flags of the command line in place of Python arguments.

Below the command line, messages name the argument of the Python API, in backticks (`max_tokens`),
because that is what its callers write. This is the one place that replaces these names by flags
(`--max-tokens`). The flags come from the parameters of the commands, the command that runs first,
so there is no list to maintain.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args

from rdrr_format.errors import RdrrError
from rdrr_format.options import options_of
from typer.models import ArgumentInfo, OptionInfo

Error = TypeVar("Error", bound=RdrrError)

_OTHER_NAMES = {"limit": "--tokens", "stepwise": "--decode-path"}
"""Arguments of the Python API whose flags are not named after them."""

_ARGUMENT = re.compile(r"`(?P<name>[a-z][a-z0-9_]*)(?:=(?P<value>[^`]*))?`")
_FIRST_WORD = re.compile(
    r"(?P<name>[a-z][a-z0-9_]*)(?= (?:is out of range|is not a whole number|has no such value"
    r"|has a value of the wrong type))"
)
"""The beginning of messages of `check_count`, which name the argument without backticks."""


def typer_info(annotation: Any) -> OptionInfo | ArgumentInfo | None:
    """Return what `typer.Option` or `typer.Argument` declared within an annotation, if anything."""
    details = get_args(annotation)[1:] if hasattr(annotation, "__metadata__") else ()
    return next((info for info in details if isinstance(info, (OptionInfo, ArgumentInfo))), None)


def flags_of_parameters(parameters: Iterable[inspect.Parameter]) -> dict[str, str]:
    """Return the flag of each option of a command, and the placeholder of each argument, by name.

    Args:
        parameters: The command's parameters with evaluated annotations.
    """
    flags: dict[str, str] = {}
    for parameter in parameters:
        info = typer_info(parameter.annotation)
        if isinstance(info, OptionInfo):
            # In annotations, typer stores the first name of an option in `default`.
            words = (info.default, *(info.param_decls or ()))
            long = [word for word in words if isinstance(word, str) and word.startswith("--")]
            flags[parameter.name] = long[0] if long else "--" + parameter.name.replace("_", "-")
        elif info is not None and info.metavar:
            flags[parameter.name] = info.metavar
    others = {name: flag for name, flag in _OTHER_NAMES.items() if flag in flags.values()}
    return others | flags


def flags_of_options(kind: type[Any]) -> dict[str, str]:
    """Return the flag of each field of an option class, by the field's name."""
    return {name: field.flag for name, field in options_of(kind).items() if not field.python_only}


def in_flags(text: str, flags: Mapping[str, str]) -> str:
    """Return a message with flags in place of the arguments that it names.

    Arguments stand in backticks: `` `verify` none `` and `` `verify="none"` `` become
    `--verify none`. Names that `flags` lacks stay as they are.
    """

    def replaced(match: re.Match[str]) -> str:
        flag = flags.get(match["name"])
        if flag is None:
            return match[0]
        value = (match["value"] or "").strip("\"'")
        # `...` stands for any value, and a flag without a value means True.
        return flag if value in ("", "...", "True") else f"{flag} {value}"

    return _ARGUMENT.sub(replaced, text)


def reword(error: Error, flags: Mapping[str, str]) -> Error:
    """Replace the arguments that an error names by flags, and return the error.

    Args:
        error: The error, which is changed.
        flags: Flags by the names of arguments, as `flags_of_parameters` returns them.
    """
    first = _FIRST_WORD.match(error.message)
    if first is not None and first["name"] in flags:
        error.message = flags[first["name"]] + error.message[first.end() :]
    error.message = in_flags(error.message, flags)
    error.expected = _in_flags(error.expected, flags)
    error.found = _in_flags(error.found, flags)
    error.hint = _in_flags(error.hint, flags)
    error.args = (error.line(),)
    return error


def _in_flags(text: str | None, flags: Mapping[str, str]) -> str | None:
    return None if text is None else in_flags(text, flags)
