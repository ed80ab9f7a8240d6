"""`/infill`: the text between two others, where the vocabulary has the tokens for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field
from rdrr_format.errors import RdrrError, UsageError
from starlette.responses import JSONResponse, Response

from rdrr.serve import sse
from rdrr.serve.requests import Request
from rdrr.serve.texts import Answer, Service, Texts

if TYPE_CHECKING:
    from rdrr._model import Model


class Marks(NamedTuple):
    """Tokens before the text before, before the text after, and before the text between them."""

    prefix: str
    suffix: str
    middle: str = ""
    suffix_first: bool = False


MARKS: Sequence[Marks] = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    Marks("<PRE>", "<SUF>", "<MID>"),
    Marks("[PREFIX]", "[SUFFIX]", suffix_first=True),
)
"""The tokens that models were trained with; the first that a vocabulary has are used."""


class InfillRequest(Request):
    """A request for `/infill`."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    n: Literal[1] = 1
    n_predict: Annotated[int, Field(ge=-1)] | None = None

    @property
    def most(self) -> int | None:
        """Most new tokens; None for as many as fit."""
        stated = self.max_tokens if self.n_predict is None else self.n_predict
        return None if stated == -1 else stated


def marks_of(model: Model) -> Marks | None:
    """Return the tokens for infilling of a vocabulary; None if it has none."""
    added = model._codec.added_tokens()
    return next((each for each in MARKS if {each.prefix, each.suffix} <= added.keys()), None)


def infill_prompt(model: Model, before: str, after: str) -> list[int]:
    """Return the ids of a prompt whose answer stands between two texts.

    The texts never become control tokens.

    Raises:
        UsageError: The vocabulary has no tokens for this.
    """
    codec = model._codec
    marks = marks_of(model)
    if marks is None:
        raise UsageError(
            "the model fills no gaps",
            expected=f"a vocabulary with {MARKS[0].prefix} or the like",
            hint="ask for a completion",
        )
    prefix, suffix = codec.control_tokens(list(codec.added_tokens())).marked([before, after])
    parts = [f"{marks.prefix}{prefix}", f"{marks.suffix}{suffix}"]
    text = "".join(reversed(parts) if marks.suffix_first else parts)
    return codec.encode_marked(f"{text}{marks.middle}")


async def infill(service: Service, request: InfillRequest) -> Response:
    """Answer `/infill`."""
    ids = infill_prompt(service.model, request.input_prefix + request.prompt, request.input_suffix)
    # No tokens are asked for by editors that want the prompt to be read beforehand.
    texts = Texts(service, request, [] if request.most == 0 else [ids], request.most)
    answer = Answer(len(ids))
    if request.stream:
        return sse.stream(_stream(service, texts, answer))
    (answer,) = await texts.read() or [answer]
    return JSONResponse(_end(service, answer, answer.text))


async def _stream(service: Service, texts: Texts, answer: Answer) -> AsyncIterator[str]:
    try:
        async for news in texts.events():
            if news is None:
                yield sse.WAITING
                continue
            answer.add(news[1])
            if news[1].text:
                yield sse.data({"content": news[1].text, "stop": False})
        yield sse.data(_end(service, answer, ""))
    except RdrrError as error:
        yield sse.data({"error": {"message": str(error), "type": "server_error", "code": None}})
    finally:
        texts.close()


def _end(service: Service, answer: Answer, content: str) -> dict[str, Any]:
    return {
        "content": content,
        "stop": True,
        "model": service.name,
        "tokens_predicted": len(answer.ids),
        "tokens_evaluated": answer.prompt_tokens,
        "stop_type": "limit" if answer.finish == "length" else "eos",
        "truncated": False,
    }
