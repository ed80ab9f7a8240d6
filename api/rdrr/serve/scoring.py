"""`/v1/embeddings`, `/v1/rerank` and `/v1/classify`, for packages that are made for them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field
from rdrr_format.errors import UsageError
from starlette.responses import JSONResponse, Response

from rdrr.serve.requests import Body
from rdrr.serve.texts import Service, call

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

MOST_INPUTS = 256
"""Most texts of a request."""

Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)]
Ids = Annotated[list[int], Field(min_length=1)]


class EmbeddingRequest(Body):
    """A request for `/v1/embeddings`."""

    model: str | None = None
    input: str | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=MOST_INPUTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None


class RerankRequest(Body):
    """A request for `/v1/rerank`."""

    model: str | None = None
    query: str
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=MOST_INPUTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    instruction: str | None = None


class ClassifyRequest(Body):
    """A request for `/v1/classify`."""

    model: str | None = None
    input: str | Texts


async def embeddings(service: Service, request: EmbeddingRequest) -> Response:
    """Answer `/v1/embeddings`."""
    texts, rows = await embedded(service, request)
    data = [
        {"object": "embedding", "index": index, "embedding": _row(row, request.encoding_format)}
        for index, row in enumerate(rows)
    ]
    return JSONResponse(
        {"object": "list", "data": data, "model": service.name, "usage": usage(service, texts)}
    )


async def embedded(
    service: Service, request: EmbeddingRequest
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Return the texts of a request, and their embeddings."""
    texts = _texts(service, request.input)
    rows = await call(service, lambda model: model.embed(texts, prompt=request.prompt_name))
    if request.dimensions is not None:
        rows = _shortened(rows, request.dimensions)
    return texts, rows


async def rerank(service: Service, request: RerankRequest) -> Response:
    """Answer `/v1/rerank`: the documents in the order of their scores."""
    texts = [_text_of(document) for document in request.documents]
    scores = await call(
        service,
        lambda model: model.rank(request.query, texts, instruction=request.instruction),
    )
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: request.top_n]
    results = [
        {
            "index": index,
            "relevance_score": scores[index],
            **({"document": {"text": texts[index]}} if request.return_documents else {}),
        }
        for index in order
    ]
    counts = usage(service, [request.query, *texts])
    head = {"id": f"rerank-{uuid4().hex}", "model": service.name}
    return JSONResponse({**head, "results": results, "usage": counts})


async def classify(service: Service, request: ClassifyRequest) -> Response:
    """Answer `/v1/classify`: the probability of each label."""
    texts = _texts(service, request.input)
    found = await call(service, lambda model: model.classify(texts))
    data = [
        {
            "index": index,
            "label": max(labels, key=labels.__getitem__),
            "probs": list(labels.values()),
            "labels": list(labels),
            "num_classes": len(labels),
        }
        for index, labels in enumerate(found)
    ]
    head = {"id": f"classify-{uuid4().hex}", "object": "list", "model": service.name}
    return JSONResponse({**head, "data": data, "usage": usage(service, texts)})


def _texts(service: Service, stated: Any) -> list[str]:
    """Return the texts of a request; ids become text."""
    if isinstance(stated, str):
        return [stated]
    if isinstance(stated[0], int):
        stated = [stated]
    return [text if isinstance(text, str) else _text_of_ids(service, text) for text in stated]


def _text_of_ids(service: Service, ids: list[int]) -> str:
    """Return the text that has these ids, so that it is embedded as it would be by itself.

    Raises:
        UsageError: The text has other ids. Clients count with the tokenizers of OpenAI's models.
    """
    text = service.model.decode(ids)
    if ids not in (service.model.encode(text), service.model.encode_as_is(text)):
        raise UsageError(
            "the model's tokenizer gives these ids to no text", where="input", hint="send the text"
        )
    return text


def _text_of(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise UsageError("a document is a text", where="documents", found=document)
    return text


def _shortened(rows: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """Return embeddings cut to a width, with length 1, as models for that are trained."""
    import numpy as np

    if width > rows.shape[1]:
        raise UsageError(
            "`dimensions` is out of range", expected=f"1 to {rows.shape[1]}", found=width
        )
    rows = rows[:, :width]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _row(row: npt.NDArray[np.float32], encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(value) for value in row]


def usage(service: Service, texts: Sequence[str]) -> dict[str, int]:
    """Return the counts of an answer that has no text."""
    count = sum(len(service.model.encode(text)) for text in texts)
    return {"prompt_tokens": count, "total_tokens": count}
