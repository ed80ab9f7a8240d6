"""Reranking: how well texts answer a query, by the logits of `yes` and `no` after a question.

The question is that of the published Qwen3-Reranker models; others need a prompt of their own.
A score is the probability of `yes`, where only `yes` and `no` may follow: 1 / (1 + exp(no - yes)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from rdrr_format.errors import ManifestError
from rdrr_format.misuse import explained
from rdrr_manifests import rank_question

if TYPE_CHECKING:
    from rdrr_runtime.backend import Backend

Encode = Callable[[str], list[int]]

_LARGEST_EXPONENT = 700.0
"""Larger arguments of `exp` overflow."""


@explained
@dataclass(frozen=True)
class RankPrompt:
    """The question that a reranking model answers with one of two tokens.

    Attributes:
        before: Text before the pair of query and document.
        pair: The pair, with `{instruction}`, `{query}` and `{document}`.
        after: Text after the pair, after which the answer follows.
        instruction: The instruction, where none is given.
        yes: Token that means that the document answers the query.
        no: Token that means that it does not.
    """

    before: str = rank_question.BEFORE
    pair: str = rank_question.PAIR
    after: str = rank_question.AFTER
    instruction: str = rank_question.INSTRUCTION
    yes: str = "yes"
    no: str = "no"

    def ids(self, encode: Encode, query: str, document: str, instruction: str | None) -> list[int]:
        """Return the token ids of the question; its three parts are encoded one by one."""
        values = {
            "{instruction}": self.instruction if instruction is None else instruction,
            "{query}": query,
            "{document}": document,
        }
        pair = "".join(_filled(self.pair, values))
        return [*encode(self.before), *encode(pair), *encode(self.after)]

    def answers(self, encode: Encode) -> tuple[int, int]:
        """Return the ids of the tokens `yes` and `no`.

        Raises:
            ManifestError: One of them is not a single token.
        """
        yes, no = encode(self.yes), encode(self.no)
        if len(yes) != 1 or len(no) != 1 or yes == no:
            raise ManifestError(
                "this model cannot rank: its tokenizer has no single tokens for the two answers",
                expected=f"one token each for {self.yes!r} and {self.no!r}",
                found=f"{len(yes)} and {len(no)} tokens",
                hint="use a reranking model, or a prompt with other answers",
            )
        return yes[0], no[0]


def scores(
    backend: Backend, questions: Sequence[Sequence[int]], answers: tuple[int, int]
) -> list[float]:
    """Return the probability of the first answer to each question.

    Args:
        backend: The model; its cache counts as empty.
        questions: Token ids of each question. What one shares with the one before is not run again.
        answers: Ids of `yes` and `no`.

    Raises:
        GenerationError: The logits are not finite.
    """
    from rdrr_runtime.backend import resumable
    from rdrr_runtime.sampling.finite import check_logits

    scores: list[float] = []
    before: Sequence[int] = ()
    for ids in questions:
        # At least the last id is run, since its logits are the answer.
        base = resumable(backend, min(_shared(before, ids), len(ids) - 1))
        logits = check_logits(backend.logits(ids[base:], base)[0])
        difference = float(logits[answers[1]]) - float(logits[answers[0]])
        # The softmax over the two answers alone.
        scores.append(1.0 / (1.0 + exp(min(difference, _LARGEST_EXPONENT))))
        before = ids
    return scores


def _shared(first: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of leading ids that two sequences share."""
    pairs = zip(first, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(other)))


def _filled(form: str, values: dict[str, str]) -> Iterator[str]:
    """Yield the parts of a form with its fields replaced; texts may contain braces themselves."""
    while form:
        fields = [(form.find(field), field) for field in values if field in form]
        if not fields:
            break
        at, field = min(fields)
        yield form[:at]
        yield values[field]
        form = form[at + len(field) :]
    yield form
