"""`rdrr chat`: a conversation in the terminal, or piped, a message a line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rdrr_format.errors import RdrrError, UsageError
from rdrr_runtime.decode.interval import AUTO
from rdrr_runtime.sampling.params import SamplingParams

from rdrr._load_options import LoadOptions
from rdrr.cli._console import announce, note, print_error
from rdrr.cli._flags import with_flags
from rdrr.cli._options import ContextShift, IntervalFlag, PackagePath

if TYPE_CHECKING:
    from rdrr._chat import Conversation

_HELP = """\
/help          this list
/reset         forget all but the system's message
/system TEXT   start anew with this system's message; without TEXT with none
/save FILE     write the messages as JSON
/load FILE     read messages that /save wrote
/exit          leave, as the end of the input does
Ctrl-C stops an answer."""


@with_flags
def chat(
    path: PackagePath,
    *,
    system: Annotated[str | None, typer.Option(help="The system's message.")] = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A chat template in Jinja for the package's."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 512,
    sampling: SamplingParams,
    load: LoadOptions,
    context_shift: ContextShift = None,
    interval: IntervalFlag = AUTO,
) -> int:
    """Talk with a model. Answers go to stdout as they come; /help lists the commands."""
    import rdrr
    from rdrr._chat import Conversation

    options = {
        "max_tokens": max_tokens,
        "sampling": sampling,
        "context_shift": context_shift,
        "interval": interval,
    }
    with rdrr.load(path, options=load) as model:
        model.chat_template(template)  # before anything is typed
        announce(model)
        conversation = Conversation(model, system=system, template=template)
        return _talk(conversation, options)


def _talk(conversation: Conversation, options: Mapping[str, Any]) -> int:
    """Take lines until the input ends; an error in a pipe ends it with its exit code."""
    interactive = sys.stdin.isatty()
    if interactive:
        note("/help lists the commands; /exit leaves")
    for line in _lines(interactive=interactive):
        try:
            if line.startswith("/"):
                if not _command(conversation, line):
                    return 0
            elif line:
                _answer(conversation, line, options)
        except RdrrError as error:
            conversation.withdraw()
            if not interactive:
                raise
            print_error(error, as_json=False)
    return 0


def _lines(*, interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401  # input() then edits lines and remembers them

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:  # it came as the answer ended: no reason to lose the talk
            sys.stdout.write("\n")
            note("/exit leaves")


def _answer(conversation: Conversation, text: str, options: Mapping[str, Any]) -> None:
    generation = conversation.ask(text, **options)
    pieces: list[str] = []
    with _interruptible() as interrupted:
        for piece in generation:
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
            if interrupted():
                generation.close()
    sys.stdout.write("\n")
    sys.stdout.flush()
    conversation.answered("".join(pieces))
    if generation.stats.finish == "context":
        note("the context is full; /reset empties it, --context-shift drops its oldest half")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is remembered until a piece has come, so that no pass is broken off.

    A second one is a KeyboardInterrupt again.
    """
    pressed: list[int] = []
    ours = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: Any) -> None:
        del frame
        signal.signal(signal.SIGINT, ours)
        pressed.append(number)

    try:
        signal.signal(signal.SIGINT, press)
    except ValueError:  # only the main thread has signals
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, ours)


def _command(conversation: Conversation, line: str) -> bool:
    """Do what a line with a slash says; False to leave."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    if name in ("exit", "quit"):
        return False
    commands: dict[str, Callable[[], None]] = {
        "help": lambda: note(_HELP),
        "reset": conversation.reset,
        "system": lambda: conversation.instruct(rest or None),
        "save": lambda: conversation.save(_file(name, rest)),
        "load": lambda: conversation.load(_file(name, rest)),
    }
    if name not in commands:
        raise UsageError("unknown command", found=f"/{name}", hint="/help lists them")
    commands[name]()
    return True


def _file(name: str, rest: str) -> str:
    if not rest:
        raise UsageError("no file", expected=f"/{name} FILE")
    return rest
