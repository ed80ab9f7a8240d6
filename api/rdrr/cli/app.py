"""The table of commands, and the one place where errors become messages and exit codes.

Neither this module nor the command modules import anything heavy at the top: each command imports
what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import typer
from rdrr_converter.options import ConvertOptions
from rdrr_format.errors import ConversionError, RdrrError, StoreError, UsageError
from rdrr_format.options import nearest, options_of
from rdrr_runtime.decode.strategies import STRATEGIES

from rdrr._load_options import LoadOptions
from rdrr.cli import (
    architectures,
    bench,
    chat,
    classify,
    convert,
    devices,
    diff,
    embed,
    explain,
    export,
    export_program,
    generate,
    hints,
    hub_cache,
    imatrix,
    inspect,
    perplexity,
    profile,
    push,
    rank,
    report,
    schema,
    serve,
    tune,
    validate,
    web,
)
from rdrr.cli._console import note_stopped, print_error
from rdrr.cli._exit_codes import INTERRUPTED
from rdrr.cli._help import GroupedCommands
from rdrr.cli._invocation import VerboseFlag, as_command, flags_of_commands
from rdrr.cli._wording import flags_of_options

_OUTPUT = "standard output"
_OUTPUT_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The parser's own base of wrong-usage errors has no public name in all versions of typer.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes:
        name: What the user types.
        function: Does the work and returns the exit code; its parameters are annotated for typer.
        heading: Heading in the list of commands.
    """

    name: str
    function: Callable[..., int]
    heading: str


_MAKE, _INSPECT = "Make packages", "Inspect packages"
_RUN, _MEASURE, _HELP = "Run models", "Measure models", "Help"
COMMANDS = (
    Command("convert", convert.convert, _MAKE),
    Command("architectures", architectures.architectures, _MAKE),
    Command("imatrix", imatrix.imatrix, _MAKE),
    Command("hints", hints.hints, _MAKE),
    Command("export", export.export, _MAKE),
    Command("push", push.push, _MAKE),
    Command("pull", hub_cache.pull, _MAKE),
    Command("list", hub_cache.list_packages, _MAKE),
    Command("rm", hub_cache.rm, _MAKE),
    Command("validate", validate.validate, _INSPECT),
    Command("inspect", inspect.inspect, _INSPECT),
    Command("report", report.report, _INSPECT),
    Command("diff", diff.diff, _INSPECT),
    Command("schema", schema.schema, _INSPECT),
    Command("generate", generate.generate, _RUN),
    Command("chat", chat.chat, _RUN),
    Command("embed", embed.embed, _RUN),
    Command("classify", classify.classify, _RUN),
    Command("rank", rank.rank, _RUN),
    Command("serve", serve.serve, _RUN),
    Command("explain", explain.explain, _RUN),
    Command("export-program", export_program.export_program, _RUN),
    Command("web", web.web, _RUN),
    Command("devices", devices.devices, _RUN),
    Command("perplexity", perplexity.perplexity, _MEASURE),
    Command("bench", bench.bench, _MEASURE),
    Command("profile", profile.profile, _MEASURE),
    Command("tune", tune.tune, _MEASURE),
)


def run(commands: Sequence[Command], arguments: Sequence[str], *, program: str) -> int:
    """Run one command line.

    Args:
        commands: Commands of the program; a single one is not named on the command line.
        arguments: Words after the program's name.
        program: Name of the program, as the help shows it.

    Returns:
        The exit code: 0 for success, 1 if the data is bad or the work failed, 2 for wrong usage.
    """
    _prepare()
    try:
        command = _parser(tuple(commands))
        code = command(list(arguments), prog_name=program, standalone_mode=False)
    except RdrrError as error:
        return _fail(_with_command(error, [program, *arguments]), arguments)
    except _ParserError as error:
        usage = _usage_of(error, program, commands, arguments)
        hint = _meant_as_prompt(error, program) or f"see `{usage} --help`"
        message = _other_option(error) or _parser_message(error)
        return _fail(UsageError(message, hint=hint), arguments)
    except OSError as error:
        return _refused(error, arguments)
    except MemoryError as error:
        return _fail(RdrrError("not enough memory", found=str(error) or None), arguments)
    except (KeyboardInterrupt, typer.Abort) as error:
        note_stopped(error)
        code = INTERRUPTED
    return int(code or 0)


def _prepare() -> None:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks is replaced instead of being an error.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _open_closed_streams() -> None:
    """Replace standard streams that the shell closed (as `<&-` does), for which Python has None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # In this order each gets its own free file descriptor, so that no other file gets it.
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


@cache
def _parser(commands: tuple[Command, ...]) -> Callable[..., int]:
    """Return the parser of some commands, which takes a tenth of a second to build."""
    return typer.main.get_command(build_app(commands))


def build_app(commands: Sequence[Command]) -> typer.Typer:
    """Return the typer application of some commands, which the reference pages read too."""
    app = typer.Typer(
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if len(commands) > 1:
        app.callback(invoke_without_command=True, cls=GroupedCommands)(_root)
    for command in commands:
        function = as_command(command.function, _all_flags)
        app.command(command.name, rich_help_panel=command.heading)(function)
    if len(commands) > 1:
        app.command("help", rich_help_panel=_HELP)(_help_command(commands))
    return app


def _all_flags() -> dict[str, str]:
    """Return the flags of all commands and decoding strategies by argument of the Python API."""
    flags = flags_of_commands(command.function for command in COMMANDS)
    for options in STRATEGIES.values():
        flags = flags_of_options(options) | flags
    return flags


def _help_command(commands: Sequence[Command]) -> Callable[..., int]:
    names = (*(command.name for command in commands), "help")

    def show_help(context: typer.Context, command: str | None = None) -> int:
        """Show the help of rdrr, or of one of its commands."""
        words = ["--help"] if command is None else [command, "--help"]
        return run(commands, words, program=str(context.find_root().info_name))

    argument = typer.Argument(
        metavar="COMMAND", help="The command to explain.", case_sensitive=False, show_default=False
    )
    show_help.__annotations__["command"] = Annotated[Literal[names] | None, argument]
    show_help.__annotations__["context"] = typer.Context
    return show_help


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: VerboseFlag = 0,
) -> int:
    """Convert checkpoints to RDRR packages, validate them, and run them through WebGPU.

    `rdrr --install-completion` sets up your shell to complete commands, options and their values
    with the Tab key. `rdrr -v COMMAND` is the same as `rdrr COMMAND -v`.
    """
    context.obj = verbose
    if version:
        from rdrr import __version__

        typer.echo(f"rdrr {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    return 0


def _parser_message(error: BaseException) -> str:
    describe = getattr(error, "format_message", None)
    # Some checks of typer put the type of the exception in front of the message.
    return str(describe() if describe else error).replace("Value error, ", "").rstrip(".")


_IN_OTHER_PROGRAMS = {
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "outtype": "quantize",
    "quantization": "quantize",
}
"""Names of flags in other programs, beside those that the options state."""


def _other_option(error: BaseException) -> str | None:
    """Return a message on an unknown flag with the one that it probably means, if one is near."""
    from rdrr_runtime.sampling.params import SamplingParams

    given = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if given is None or getattr(error, "possibilities", None) is None or context is None:
        return None
    flags = [flag for parameter in context.command.params for flag in parameter.opts]
    known = {flag for flag in flags if flag.startswith("--")}
    synonyms = _IN_OTHER_PROGRAMS | {
        other: entry.name
        for kind in (LoadOptions, SamplingParams, ConvertOptions)
        for entry in options_of(kind).values()
        for other in entry.also_known_as
    }
    named = {other: f"--{name.replace('_', '-')}" for other, name in synonyms.items()}
    usable = {other: flag for other, flag in named.items() if flag in known}
    meant = nearest(str(given), sorted(known), usable)
    return f"there is no option {given}; did you mean {meant}?" if meant else None


def _meant_as_prompt(error: BaseException, program: str) -> str | None:
    """Return how to give a prompt, where words are left over in a command that answers them."""
    left_over = re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", str(error))
    context = getattr(error, "ctx", None)
    if left_over is None or context is None:
        return None
    if any(parameter.name == "prompt" for parameter in context.command.params):
        return 'a prompt is given by -p: -p "TEXT"'
    if context.info_name != "chat":
        return None
    command = [program, "generate", str(context.params["path"]), "-p", left_over[1]]
    return f"messages are typed in the conversation; for one answer: {shlex.join(command)}"


def _usage_of(
    error: BaseException, program: str, commands: Sequence[Command], arguments: Sequence[str]
) -> str:
    """Return the words before `--help` for the command that was misused.

    An option without its value is found before there is a context that knows the command.
    """
    names = {command.name for command in commands} if len(commands) > 1 else set()
    command = next((word for word in arguments if word in names), None)
    stated = " ".join(filter(None, (program, command)))
    return str(getattr(getattr(error, "ctx", None), "command_path", stated))


def _refused(error: OSError, arguments: Sequence[str]) -> int:
    """Report an OSError that no store has turned into an error; most often the output failed."""
    where = error.filename
    if where is None and error.errno in _OUTPUT_LOST:
        where, arguments = _OUTPUT, ()
        _drop_output()
    return _fail(StoreError(error.strerror or str(error), where=where), arguments)


def _drop_output() -> None:
    # Python would flush the stream at exit, fail again and print a traceback.
    sys.stdout = io.StringIO()


def _with_command(error: RdrrError, words: Sequence[str]) -> RdrrError:
    """Put the whole command that would go on in the place of the options that an error offers."""
    if not isinstance(error, ConversionError) or not error.options:
        return error
    flags = flags_of_options(ConvertOptions)
    more = [
        word
        for name, value in error.options.items()
        for entry in ((value,) if isinstance(value, str) else value)
        if entry not in words  # given before
        for word in (flags[name], entry)
    ]
    advice = str(error.hint).partition(error.OFFER)[0]
    error.hint = f"{advice}{error.OFFER}run: {shlex.join([*words, *more])}"
    error.args = (error.line(),)
    return error


def _fail(error: RdrrError, arguments: Sequence[str]) -> int:
    try:
        print_error(error, as_json="--json" in arguments)
    except OSError as lost:
        _drop_output()
        print_error(StoreError(lost.strerror or str(lost), where=_OUTPUT), as_json=False)
    return error.exit_code
