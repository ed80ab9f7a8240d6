"""Errors of the libraries name arguments; those of the commands name flags."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from rdrr._load_options import LoadOptions
from rdrr.cli._invocation import flags_of_commands
from rdrr.cli._wording import flags_of_options, in_flags, reword
from rdrr.cli.app import Command, run
from rdrr_converter.options import ConvertOptions
from rdrr_format.errors import ManifestError, UsageError

LOAD = flags_of_options(LoadOptions)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("use `kv_dtype` f16", "use --kv-dtype f16"),
        ("use `kv_dtype=f16`", "use --kv-dtype f16"),
        ("load it with `verify='none'`", "load it with --verify none"),
        ('`verify="none"`, or a lower `context`', "--verify none, or a lower --context"),
        ("give `adapter=...`", "give --adapter"),
        ("with `follow_links=True`", "with --follow-links"),
        ("use `kernel_hints` q4kMatmul=auto", "use --kernel-hint q4kMatmul=auto"),
        ("`unknown`, the context, kv_dtype", "`unknown`, the context, kv_dtype"),
        ("run `rdrr validate PATH --deep`", "run `rdrr validate PATH --deep`"),
    ],
)
def test_arguments_in_backticks_become_flags(text, wanted):
    assert in_flags(text, LOAD) == wanted


def test_a_flag_that_is_not_named_after_its_argument_is_found():
    assert in_flags("`hash_algorithm`", flags_of_options(ConvertOptions)) == "--hash"


def test_an_argument_that_only_python_has_stays_as_it_is():
    assert "busy_timeout" not in LOAD
    assert in_flags("`busy_timeout`", LOAD) == "`busy_timeout`"


def test_all_parts_of_an_error_are_reworded_and_the_file_it_names_is_not():
    error = ManifestError(
        "`context` is too long",
        where="folder/`context`",
        expected="`kv_dtype` f16",
        found="`kv_dtype` f32",
        hint="omit `strict_hints`",
    )
    assert reword(error, LOAD) is error
    assert str(error) == (
        "folder/`context`: --context is too long (expected --kv-dtype f16, found --kv-dtype f32); "
        "omit --strict-hints"
    )
    assert error.as_dict()["hint"] == "omit --strict-hints"


def probe(
    kv_dtype: Annotated[str, typer.Option("--own-name", "-o")] = "f16",
    max_tokens: Annotated[int, typer.Option(min=1)] = 1,
) -> int:
    raise UsageError("`kv_dtype` is wrong", hint=f"not {kv_dtype} {max_tokens}; use `deep`")


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("max_tokens is out of range", "--max-tokens is out of range"),
        ("kv_dtype has no such value", "--own-name has no such value"),
        ("max_tokens is a riddle", "max_tokens is a riddle"),
        ("device is out of range", "device is out of range"),
    ],
)
def test_the_name_before_a_failed_check_of_a_count_becomes_a_flag(message, wanted):
    flags = flags_of_commands([probe])
    assert reword(UsageError(message), flags).message == wanted


def test_a_command_names_its_own_flags_and_those_of_others_where_it_has_none(capsys):
    assert run([Command("probe", probe, "Run")], [], program="probe") == 2
    assert capsys.readouterr().err == "error: --own-name is wrong; not f16 1; use --deep\n"
