"""The table of commands, and the one path on which errors leave the program.

Nothing heavy is imported here or in the command modules: each imports its work when it runs, so
that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rdrr_format.errors import RdrrError, UsageError

from rdrr.cli import (
    bench,
    chat,
    convert,
    devices,
    diff,
    explain,
    export,
    generate,
    hints,
    imatrix,
    inspect,
    perplexity,
    profile,
    push,
    report,
    schema,
    tune,
    validate,
)
from rdrr.cli._console import print_error

INTERRUPTED = 130
# The parser's own base of wrong-usage errors has no public name in all versions of typer.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


@dataclass(frozen=True)
class Command:
    """One command: its name, and the function that typer calls and that returns the exit code."""

    name: str
    function: Callable[..., int]


COMMANDS = (
    Command("convert", convert.convert),
    Command("validate", validate.validate),
    Command("inspect", inspect.inspect),
    Command("generate", generate.generate),
    Command("chat", chat.chat),
    Command("explain", explain.explain),
    Command("bench", bench.bench),
    Command("profile", profile.profile),
    Command("tune", tune.tune),
    Command("perplexity", perplexity.perplexity),
    Command("imatrix", imatrix.imatrix),
    Command("report", report.report),
    Command("diff", diff.diff),
    Command("export", export.export),
    Command("hints", hints.hints),
    Command("push", push.push),
    Command("schema", schema.schema),
    Command("devices", devices.devices),
)


def run(commands: Sequence[Command], arguments: Sequence[str], *, program: str) -> int:
    """Run one command line.

    Args:
        commands: What the program offers; a single one needs no name on the command line.
        arguments: Words after the program's name.
        program: Name shown in the help.

    Returns:
        The exit code: 0 good, 1 the data is bad or the work failed, 2 wrong usage.
    """
    _prepare()
    try:
        code = _build(commands)(list(arguments), prog_name=program, standalone_mode=False)
    except RdrrError as error:
        return _fail(error, arguments)
    except _ParserError as error:
        hint = f"see `{program} --help`"
        return _fail(UsageError(_parser_message(error), hint=hint), arguments)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return int(code or 0)


def _prepare() -> None:
    # Mesa's drivers complain on stderr, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows a substitute; it is no reason to fail.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _build(commands: Sequence[Command]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if len(commands) > 1:
        app.callback(invoke_without_command=True)(_root)
    for command in commands:
        app.command(command.name)(command.function)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> int:
    """Convert checkpoints to RDRR packages, validate them, and run them through WebGPU."""
    if version:
        from rdrr import __version__

        typer.echo(f"rdrr {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    return 0


def _parser_message(error: BaseException) -> str:
    describe = getattr(error, "format_message", None)
    return str(describe() if describe else error).rstrip(".")


def _fail(error: RdrrError, arguments: Sequence[str]) -> int:
    print_error(error, as_json="--json" in arguments)
    return error.exit_code
