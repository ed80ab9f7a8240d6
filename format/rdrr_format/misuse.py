"""Errors of the tree for calls whose arguments do not fit, in place of Python's TypeError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, isfunction, signature
from typing import Any, TypeVar, cast

from rdrr_format.errors import UsageError
from rdrr_format.options import suggestion

C = TypeVar("C", bound=Callable[..., Any])


def explained(target: C) -> C:
    """Let a public function, or the public methods of a class, raise UsageError for misuse.

    A call that fits costs nothing more, and a TypeError from within stays what it is.
    """
    if not isinstance(target, type):
        return _explained(target)
    for name, method in [*vars(target).items()]:
        if isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(target, name, _explained(method))
    return target


def _explained(function: C) -> C:
    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError:
            misuse = _misuse(signature(function), arguments, keywords)
            if misuse is None:
                raise
        raise misuse

    return cast("C", call)


def _misuse(
    expected: Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> UsageError | None:
    """Return what is wrong with the arguments of a call; None if they fit."""
    try:
        expected.bind(*arguments, **keywords)
    except TypeError as error:
        problem = str(error)
    else:
        return None
    parameters = [entry for entry in expected.parameters.values() if entry.name != "self"]
    names = [entry.name for entry in parameters if entry.kind is not Parameter.VAR_KEYWORD]
    unknown = [name for name in keywords if name not in names]
    if unknown and len(names) == len(parameters):
        return UsageError(
            "there is no keyword of this name",
            expected=", ".join(names),
            found=unknown[0],
            hint=suggestion(unknown[0], names) or None,
        )
    words = (entry.replace(annotation=Parameter.empty) for entry in parameters)
    return UsageError(
        "the arguments do not fit", expected=f"({', '.join(map(str, words))})", found=problem
    )
