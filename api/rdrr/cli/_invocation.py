"""The wrapper around every command, which adds what all commands have in common.

- `-v`, which prints what the components log.
- Closed choices that are accepted in any case, and placeholders for numbers and texts in the help.
- Short names of repositories on the hub (`org/name`) wherever a package or a checkpoint is read.
- Errors that name flags, where those of the libraries name arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from rdrr_format.errors import RdrrError, StoreError
from typer.models import OptionInfo

from rdrr._hub_names import hub_location
from rdrr.cli._console import note, note_stopped
from rdrr.cli._exit_codes import INTERRUPTED
from rdrr.cli._log import verbose_lines
from rdrr.cli._wording import flags_of_parameters, reword, typer_info

VERBOSE_HELP = (
    "Print the adapter, the kernels, the stages and their times on stderr; -vv prints every step "
    "and retries."
)


class ReadsLocation:
    """Annotation of a parameter whose value names a package or a checkpoint to read."""


READS_LOCATION = ReadsLocation()

VerboseFlag = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, show_default=False, help=VERBOSE_HELP),
]

_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT"}
"""Placeholders of values in the help, where an option states none."""


def as_command(
    function: Callable[..., int], other_flags: Callable[[], Mapping[str, str]]
) -> Callable[..., int]:
    """Return the function that typer calls for a command.

    Args:
        function: The command; its parameters are annotated for typer.
        other_flags: Returns the flags of the other commands by argument; called after an error,
            which may advise to run another command.
    """
    parameters = _parameters(function)
    locations = [
        parameter.name for parameter in parameters if _reads_location(parameter.annotation)
    ]
    flags = flags_of_parameters(parameters)

    @wraps(function)
    def run(typer_context: typer.Context, **given: Any) -> int:
        verbose = given.pop("verbose") + (typer_context.obj or 0)
        with verbose_lines(verbose, note):
            from_hub = _read_from_hub(given, locations)
            try:
                return function(**given)
            except KeyboardInterrupt as error:
                note_stopped(error)
                return INTERRUPTED
            except RdrrError as error:
                reword(error, {**other_flags(), **flags})
                _name_both_places(error, from_hub)
                raise

    extended = (
        _parameter("typer_context", typer.Context),
        *parameters,
        _parameter("verbose", VerboseFlag, default=0),
    )
    typed: Any = run
    typed.__signature__ = inspect.Signature(extended, return_annotation=int)
    annotations = {parameter.name: parameter.annotation for parameter in extended}
    typed.__annotations__ = annotations | {"return": int}
    command: Callable[..., int] = typed
    return command


def flags_of_commands(functions: Iterable[Callable[..., int]]) -> dict[str, str]:
    """Return the flags of several commands by the name of the argument.

    Where commands differ, the flag of the first command is returned.
    """
    flags: dict[str, str] = {}
    for function in functions:
        flags = flags_of_parameters(_parameters(function)) | flags
    return flags


def _parameters(function: Callable[..., int]) -> list[inspect.Parameter]:
    """Return the parameters of a command with evaluated and adapted annotations."""
    hints = get_type_hints(function, include_extras=True)
    return [
        parameter.replace(
            annotation=_adapted(hints[parameter.name], parameter.default),
            kind=inspect.Parameter.KEYWORD_ONLY,
        )
        for parameter in inspect.signature(function).parameters.values()
    ]


def _parameter(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _adapted(annotation: Any, default: Any) -> Any:
    """Return an annotation whose option takes its choices in any case and has a placeholder."""
    info = typer_info(annotation)
    if not isinstance(info, OptionInfo):
        return annotation
    kind, *details = get_args(annotation)
    option = copy(info)
    option.case_sensitive = False
    if option.metavar is None and not isinstance(default, bool):
        option.metavar = _placeholder(kind)
    return Annotated[kind, *(option if detail is info else detail for detail in details)]


def _placeholder(kind: Any) -> str | None:
    """Return the placeholder for values of a type; a list or optional type has its items'."""
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    for inner in (kind, *get_args(kind)):
        if get_origin(inner) is list:
            return _placeholder(inner)
        if inner in _PLACEHOLDERS:
            return _PLACEHOLDERS[inner]
    return None


def _reads_location(annotation: Any) -> bool:
    return any(isinstance(detail, ReadsLocation) for detail in get_args(annotation)[1:])


def _read_from_hub(given: dict[str, Any], locations: Sequence[str]) -> dict[str, str]:
    """Replace short names of repositories by their `hf://` locations.

    Args:
        given: Values of the command's parameters, which are changed.
        locations: Names of the parameters that name packages or checkpoints.

    Returns:
        What was typed, by the location that took its place.
    """
    replaced: dict[str, str] = {}

    def read(typed: Any) -> Any:
        if isinstance(typed, list):
            return [read(each) for each in typed]
        location = hub_location(typed) if isinstance(typed, str) else None
        if location is None:
            return typed
        replaced[location] = typed
        if not given.get("quiet"):
            note(f"there is no file or folder {typed}; reading {location} from the hub")
        return location

    given |= {name: read(given[name]) for name in locations}
    return replaced


def _name_both_places(error: RdrrError, from_hub: Mapping[str, str]) -> None:
    """Add to an error of the hub that no file or folder of this machine has the name either.

    Args:
        error: The error, which is changed if it is about one of the locations.
        from_hub: What was typed, by the location that took its place.
    """
    for location, typed in from_hub.items():
        if isinstance(error, StoreError) and (error.where or "").startswith(location):
            error.message = (
                f"there is no such file or folder, and {location} cannot be read: {error.message}"
            )
            error.where = typed
            error.args = (error.line(),)
