"""The table of commands, and the one path on which errors leave the program.

Nothing heavy is imported here or in the command modules: each imports its work when it runs, so
that `--help` answers at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rdrr_format.errors import RdrrError, StoreError, UsageError

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
from rdrr.cli._console import note, print_error
from rdrr.cli._exit_codes import INTERRUPTED
from rdrr.cli._help import GroupedCommands

_OUTPUT = "standard output"
_OUTPUT_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The parser's own base of wrong-usage errors has no public name in all versions of typer.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


@dataclass(frozen=True)
class Command:
    """One command: its name, its heading in the help, and what typer calls for an exit code."""

    name: str
    function: Callable[..., int]
    heading: str


_MAKE, _KNOW, _RUN, _MEASURE = "Make", "Look into", "Run", "Measure"
COMMANDS = (
    Command("convert", convert.convert, _MAKE),
    Command("imatrix", imatrix.imatrix, _MAKE),
    Command("hints", hints.hints, _MAKE),
    Command("export", export.export, _MAKE),
    Command("push", push.push, _MAKE),
    Command("validate", validate.validate, _KNOW),
    Command("inspect", inspect.inspect, _KNOW),
    Command("report", report.report, _KNOW),
    Command("diff", diff.diff, _KNOW),
    Command("schema", schema.schema, _KNOW),
    Command("generate", generate.generate, _RUN),
    Command("chat", chat.chat, _RUN),
    Command("explain", explain.explain, _RUN),
    Command("devices", devices.devices, _RUN),
    Command("perplexity", perplexity.perplexity, _MEASURE),
    Command("bench", bench.bench, _MEASURE),
    Command("profile", profile.profile, _MEASURE),
    Command("tune", tune.tune, _MEASURE),
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
        hint = f"see `{_usage_of(error, program)} --help`"
        return _fail(UsageError(_parser_message(error), hint=hint), arguments)
    except OSError as error:
        return _refused(error, arguments)
    except MemoryError as error:
        return _fail(RdrrError("not enough memory", found=str(error) or None), arguments)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer versions of typer return it themselves
        # A terminal shows ^C where the cursor was, behind whatever stood there.
        note("\nstopped" if sys.stderr.isatty() else "stopped")
    return int(code or 0)


def _prepare() -> None:
    # Mesa's drivers complain on stderr, once an adapter, where no desktop session has set it.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows a substitute; it is no reason to fail.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _open_closed_streams() -> None:
    """Python has no object for a stream that was closed before it started, as by `<&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order each takes the number that is free, so that no file of ours gets it.
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


def _build(commands: Sequence[Command]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if len(commands) > 1:
        app.callback(invoke_without_command=True, cls=GroupedCommands)(_root)
    for command in commands:
        app.command(command.name, rich_help_panel=command.heading)(command.function)
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
    # typer's own checks put the kind of the exception before what they say.
    return str(describe() if describe else error).replace("Value error, ", "").rstrip(".")


def _usage_of(error: BaseException, program: str) -> str:
    return str(getattr(getattr(error, "ctx", None), "command_path", program))


def _refused(error: OSError, arguments: Sequence[str]) -> int:
    """What the system refused outside the stores, which name their files: mostly the output."""
    where = error.filename
    if where is None and error.errno in _OUTPUT_LOST:
        where, arguments = _OUTPUT, ()
        _drop_output()
    return _fail(StoreError(error.strerror or str(error), where=where), arguments)


def _drop_output() -> None:
    # What the stream still holds would fail again, with a traceback, when the program ends.
    sys.stdout = io.StringIO()


def _fail(error: RdrrError, arguments: Sequence[str]) -> int:
    try:
        print_error(error, as_json="--json" in arguments)
    except OSError as lost:
        _drop_output()
        print_error(StoreError(lost.strerror or str(lost), where=_OUTPUT), as_json=False)
    return error.exit_code
