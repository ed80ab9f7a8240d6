"""`rdrr architectures`: what converts, in which forms, and how it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import UsageError

from rdrr.cli._console import console, facts, print_json, table
from rdrr.cli._options import JsonFlag

if TYPE_CHECKING:
    from rdrr_converter.architectures import ArchitectureRule
    from rdrr_converter.architectures.checked import CheckedArchitecture
    from rich.console import Console

_CHECKS = {
    "cpu": "CPU, all tokens in one pass",
    "cpu_cached": "CPU, one token at a time",
    "wgpu": "wgpu, all tokens in one pass",
    "wgpu_cached": "wgpu, one token at a time",
    "wgpu_batch": "wgpu, a batch of sequences",
    "f16": "wgpu, weights and cache in f16",
    "q4_k_m": "wgpu and CPU on the same Q4_K_M blocks",
    "gguf_in": "read from a GGUF",
    "gguf_out": "written to a GGUF and read again",
}
_FORMS = {"gguf_in": "from GGUF", "gguf_out": "to GGUF"}
_IN_F32 = ("cpu", "cpu_cached", "wgpu", "wgpu_cached", "wgpu_batch")
_RESULTS = (*_FORMS.values(), "error in f32", "error in f16")
_WIDE = 100
"""Fewest columns of a terminal in which the names of classes are not folded into scraps."""


def architectures(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Show one architecture: its name, a class or a model_type.",
            show_default=False,
        ),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """List the architectures that convert, and how each was compared with transformers.

    All of them are read from safetensors and PyTorch files. Errors are relative to the largest
    logit of transformers, on tiny random models.
    """
    from rdrr_converter.architectures import ARCHITECTURES
    from rdrr_converter.architectures.checked import read_checked, read_facts

    checked, made_with = read_checked(), read_facts()
    rules = sorted(ARCHITECTURES, key=lambda rule: rule.name)
    if name is not None:
        rules = [_find(name, rules)]
    rows = [describe(rule, checked.get(rule.name)) for rule in rules]
    if json:
        print_json({"architectures": rows, "checked_with": made_with})
    elif name is not None:
        _show_one(console(), rows[0], made_with)
    else:
        _show_all(console(), rows, made_with)
    return 0


def describe(rule: ArchitectureRule, checked: CheckedArchitecture | None) -> dict[str, Any]:
    """Return an architecture as JSON values."""
    from rdrr_converter.architectures import families_of

    errors = {} if checked is None else dict(checked.errors)
    return {
        "name": rule.name,
        "classes": list(rule.classes),
        "model_types": [rule.name, *rule.model_types],
        "families": list(families_of(rule)),
        "forms": ["safetensors", *(form for key, form in _FORMS.items() if key in errors)],
        "checked_models": [] if checked is None else list(checked.models),
        "errors": errors,
    }


def _find(name: str, rules: list[ArchitectureRule]) -> ArchitectureRule:
    from rdrr_converter.architectures import find_by_name

    match = find_by_name(name)
    if match is None:
        names = [word for rule in rules for word in (rule.name, *rule.model_types, *rule.classes)]
        near = get_close_matches(name, names, 1)
        raise UsageError(
            "unknown architecture",
            found=name,
            hint=f"did you mean {near[0]}?" if near else "`rdrr architectures` lists all",
        )
    return match


def _show_all(out: Console, rows: list[dict[str, Any]], made_with: Mapping[str, str]) -> None:
    has_classes = out.width >= _WIDE
    columns = ("architecture", *("classes",) * has_classes, *_RESULTS)
    cells = [
        (
            row["name"],
            *(", ".join(row["classes"]),) * has_classes,
            *("yes" if form in row["forms"] else "-" for form in _FORMS.values()),
            _worst(row["errors"]),
            f"{row['errors']['f16']:.0e}" if "f16" in row["errors"] else "-",
        )
        for row in rows
    ]
    out.print(table(columns, cells, right=_RESULTS[2:]))
    if not has_classes:
        out.print("classes of one of them: `rdrr architectures NAME`")
    out.print(_made_with(made_with), soft_wrap=True)


def _worst(errors: Mapping[str, float]) -> str:
    measured = [errors[key] for key in _IN_F32 if key in errors]
    return f"{max(measured):.0e}" if measured else "not checked"


def _show_one(out: Console, row: dict[str, Any], made_with: Mapping[str, str]) -> None:
    listed = ("classes", "model_types", "families", "forms", "checked_models")
    out.print(
        facts(
            [
                ("architecture", row["name"]),
                *((key.replace("_", " "), ", ".join(row[key])) for key in listed if row[key]),
                *((_CHECKS.get(key, key), f"{error:.1e}") for key, error in row["errors"].items()),
            ]
        )
    )
    out.print(_made_with(made_with) if row["errors"] else "not checked yet", soft_wrap=True)


def _made_with(facts: Mapping[str, str]) -> str:
    if not facts:
        return "nothing was checked yet: benchmarks/check_architectures.py --record does it"
    return (
        f"checked with benchmarks/check_architectures.py against transformers "
        f"{facts['transformers']}, wgpu on {facts['adapter']}"
    )
