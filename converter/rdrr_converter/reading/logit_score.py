"""Reading a reranking model that answers with one of two tokens.

sentence-transformers states such a model as a language model with the module `LogitScore`, which
names the two tokens. If they are `yes` and `no`, as in Qwen3-Reranker, their rows of the output
matrix are read as a classification head, which is what llama.cpp has for these models. Otherwise
the model stays a language model, because its question is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rdrr_format.errors import SourceError
from rdrr_manifests.models import Classifier, EmbeddingPostprocessor
from rdrr_manifests.models.embedding import Projection
from rdrr_manifests.models.inference import Output

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import F32Array, Source, SourceTensor
from rdrr_converter.reading.classification import WEIGHT, ClassificationHead
from rdrr_converter.reading.dense_modules import read_module
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.reading.sentence_modules import list_modules
from rdrr_converter.tokenizer.files import TOKENIZER_JSON

ANSWERS = ("yes", "no")

_KINDS = ["Transformer", "LogitScore"]
_KEYS = ("true_token_id", "false_token_id")


@dataclass(frozen=True)
class LogitScore:
    """The tokens by whose logits a reranking model scores a document.

    Attributes:
        ids: The token that means that the document answers the query, and the one that means that
            it does not, where there is one.
        tokens: The tokens, as the tokenizer has them; None for an id that is no token.
    """

    ids: tuple[int, ...]
    tokens: tuple[str | None, ...]

    def head(self, tensors: Sequence[ModelTensor], output: Output) -> ClassificationHead | None:
        """Return the head whose labels are the answers; None if the format has no such head.

        Args:
            tensors: The tensors of the language model.
            output: Its embedding and head.

        Raises:
            SourceError: An id is beyond the output matrix.
        """
        if self.tokens != ANSWERS or not _are_products(tensors, output):
            return None
        roles = {
            tensor.role: tensor for tensor in tensors if tensor.role in ("embedding", "lm_head")
        }
        matrix = roles.get("lm_head", roles["embedding"]).source
        if max(self.ids) >= matrix.rows:
            raise SourceError(
                "an answer is beyond the output matrix",
                where=matrix.file,
                expected=f"token ids below {matrix.rows}",
                found=self.ids,
            )
        layer = Projection(
            input_size=matrix.columns, output_size=len(self.ids), weight_tensor=WEIGHT
        )
        rows = SourceTensor(
            WEIGHT,
            (len(self.ids), matrix.columns),
            matrix.dtype,
            matrix.file,
            matrix.native,
            decode=partial(_read_rows, matrix, self.ids),
        )
        return ClassificationHead(
            EmbeddingPostprocessor(pooling_mode="last", projections=(layer,)),
            Classifier(labels=ANSWERS, activation="softmax"),
            (ModelTensor(WEIGHT, rows, "other", None),),
        )

    @property
    def note(self) -> str:
        """What users of a model without such a head have to know."""
        named = " and ".join(repr(token) for token in self.tokens)
        return f"its answers are {named}: `rank` needs a prompt with its question and answers"


def _are_products(tensors: Sequence[ModelTensor], output: Output) -> bool:
    """Return whether the logits are products of the output matrix and the last hidden state."""
    is_plain = output.final_logit_softcapping is None and output.logit_input_scale == 1.0
    has_bias = any(
        tensor.role == "bias" and tensor.name.startswith("lm_head") for tensor in tensors
    )
    return is_plain and not has_bias and output.embedding_size is None


def read_logit_score(source: Source) -> LogitScore | None:
    """Return the answers of a reranking model; None for a checkpoint that states none.

    Raises:
        SourceError: A file is missing or damaged, or an id is no token id.
    """
    modules = list_modules(source)
    if [kind for kind, _ in modules] != _KINDS:
        return None
    name = f"{modules[1][1]}/config.json"
    settings = read_module(source, name)
    ids = tuple(settings[key] for key in _KEYS if settings.get(key) is not None)
    if settings.get(_KEYS[0]) is None or not all(
        type(token_id) is int and token_id >= 0 for token_id in ids
    ):
        raise SourceError(
            "the answers of a reranking model are no token ids",
            where=source.path / name,
            expected=" and ".join(_KEYS),
            found=dict(settings),
        )
    tokens = _tokens(source)
    return LogitScore(ids, tuple(tokens.get(token_id) for token_id in ids))


def _tokens(source: Source) -> Mapping[int, str]:
    """Return the tokens of the tokenizer's model by id; none if it has none that are named."""
    content = source.content(TOKENIZER_JSON)
    if content is None:
        return {}
    model: Any = parse_json_object(content, source.path / TOKENIZER_JSON).get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    return {token_id: token for token, token_id in vocab.items()} if isinstance(vocab, dict) else {}


def _read_rows(matrix: SourceTensor, ids: tuple[int, ...], rows: slice, columns: slice) -> F32Array:
    """Read some columns of some of the rows with these ids."""
    return np.concatenate([matrix.read(slice(index, index + 1), columns) for index in ids[rows]])
