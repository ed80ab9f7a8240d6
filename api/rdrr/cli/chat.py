"""`rdrr chat`: a conversation in the terminal, or through a pipe with one message per line."""

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
from rdrr.cli._progress import status, with_status

if TYPE_CHECKING:
    from rdrr._chat import Conversation

_HELP = """\
/help          show this list
/reset         forget the conversation, but keep the system message
/system TEXT   start again with this system message, or without one if TEXT is omitted
/image FILE    show an image to the model, with the next message
/video FILE    show a video: an animation, or a folder of frames
/save FILE     write the conversation to a file, as JSON
/load FILE     read a conversation that /save wrote
/exit          leave; so does the end of the input
Ctrl-C stops an answer."""


@with_flags
def chat(
    path: PackagePath,
    *,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Jinja chat template to use instead of the one in the package, or the name of one "
            "of the package's templates.",
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", "-n", min=1, help="Maximum number of tokens per answer."),
    ] = 512,
    control_tokens: Annotated[
        bool,
        typer.Option(
            "--control-tokens", help="Let control tokens in messages be tokens, not their text."
        ),
    ] = False,
    sampling: SamplingParams,
    load: LoadOptions,
    context_shift: ContextShift = None,
    interval: IntervalFlag = AUTO,
) -> int:
    """Chat with a model. Answers are printed as they are generated; /help lists the commands."""
    import rdrr
    from rdrr._chat import Conversation

    options = {
        "max_tokens": max_tokens,
        "sampling": sampling,
        "context_shift": context_shift,
        "interval": interval,
        "control_tokens": control_tokens,
    }
    with status("loading the model"):
        opened = rdrr.load(path, options=load)
    with opened as model:
        model.chat_template(template)  # reports a missing template before anything is typed
        announce(model)
        conversation = Conversation(model, system=system, template=template)
        return _talk(conversation, options)


def _talk(conversation: Conversation, options: Mapping[str, Any]) -> int:
    """Answer lines until the input ends; an error ends the program only if the input is a pipe."""
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
    import readline  # noqa: F401  # gives input() line editing and a history

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:  # Ctrl-C came just after the answer: keep the conversation
            sys.stdout.write("\n")
            note("/exit leaves")


def _answer(conversation: Conversation, text: str, options: Mapping[str, Any]) -> None:
    generation = conversation.ask(text, **options)
    pieces: list[str] = []
    with _interruptible() as interrupted:
        for piece in with_status(generation):
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
            if interrupted():
                generation.close()
    sys.stdout.write("\n")
    sys.stdout.flush()
    conversation.answered("".join(pieces), generation.token_ids)
    if generation.stats.finish == "context":
        note(
            "the context is full; /reset empties it, and with --context-shift the older half of it "
            "is dropped instead"
        )


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed in the block.

    The first Ctrl-C is only recorded, so that no forward pass is broken off. A second one raises
    KeyboardInterrupt as usual.
    """
    pressed: list[int] = []
    ours = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: Any) -> None:
        del frame
        signal.signal(signal.SIGINT, ours)
        pressed.append(number)

    try:
        signal.signal(signal.SIGINT, press)
    except ValueError:  # signal handlers can be set in the main thread only
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, ours)


def _show_help() -> None:
    for line in _HELP.splitlines():
        note(line)


def _command(conversation: Conversation, line: str) -> bool:
    """Run a line that begins with a slash; return False if it ends the conversation."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    if name in ("exit", "quit"):
        return False
    commands: dict[str, Callable[[], None]] = {
        "help": _show_help,
        "reset": conversation.reset,
        "system": lambda: conversation.instruct(rest or None),
        "image": lambda: conversation.show(_file(name, rest)),
        "video": lambda: conversation.show(_file(name, rest), "video"),
        "save": lambda: conversation.save(_file(name, rest)),
        "load": lambda: conversation.load(_file(name, rest)),
    }
    if name not in commands:
        raise UsageError(
            "there is no such command", found=f"/{name}", hint="/help lists the commands"
        )
    commands[name]()
    return True


def _file(name: str, rest: str) -> str:
    if not rest:
        raise UsageError("the command needs a file", expected=f"/{name} FILE")
    return rest
