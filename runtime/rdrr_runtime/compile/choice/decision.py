"""The decision for each op: which kernel serves it, with which parameters, and why.

The candidates of an op form a list in order of preference. Hints and defaults add wishes, the
strongest first. The first candidate that can serve the request and satisfies all wishes wins. If no
candidate satisfies them all, the weakest wish is dropped and the search starts again. If a dropped
wish was a hint, the decision says that the hint is not honoured, and why. Explanations,
`--strict-hints`, the profiler and the tuner read these decisions and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.compile.choice.hints import Hint
from rdrr_runtime.phases.phase import Phase


@dataclass(frozen=True)
class Unmet:
    """A hint that is not honoured, and the obstacle to it."""

    hint: Hint
    obstacle: str


@dataclass(frozen=True)
class Reason:
    """The reason for a choice.

    Attributes:
        text: The reason in words, naming the choice.
        unmet: The hint that is not honoured, if there is one.
    """

    text: str
    unmet: Unmet | None = None


ONLY = Reason("the only kernel of this op")


@dataclass(frozen=True)
class Decision:
    """The kernel that serves one op in one pass, and the reason.

    Attributes:
        step: Name of the pass, or `load` for a decision made while loading.
        op: The op or matrix, e.g. `layer 3 qkv`.
        kernel: Label of the kernel; for a decision at load, the type that is stored.
        reason: Why this kernel was chosen, in words.
        unmet: The hint that is not honoured, if there is one.
        params: Tuning keys that the kernel depends on, its own first.
    """

    step: str
    op: str
    kernel: str
    reason: str
    unmet: Unmet | None = None
    params: tuple[AnyTuningKey, ...] = ()


class Candidate(Protocol):
    """A kernel that may serve a request."""

    @property
    def title(self) -> str:
        """Description of the kernel in explanations."""


C = TypeVar("C", bound=Candidate)
R = TypeVar("R")


@dataclass(frozen=True)
class Wish(Generic[C]):
    """A soft requirement on a choice, from a hint or a default.

    Attributes:
        source: Where the wish comes from, e.g. `q4kMatmul=fused_q4k (manifest)`.
        accepts: Whether a candidate satisfies the wish.
        hint: The hint that expresses the wish; None for a default.
    """

    source: str
    accepts: Callable[[C], bool]
    hint: Hint | None = None


@dataclass(frozen=True)
class Chosen(Generic[C]):
    """The chosen candidate and the reason."""

    candidate: C
    reason: Reason


def choose(
    candidates: Sequence[C],
    refusal: Callable[[C], str | None],
    wishes: Sequence[Wish[C]],
) -> Chosen[C]:
    """Choose the candidate that serves a request.

    Args:
        candidates: Candidates in order of preference.
        refusal: Returns why a candidate cannot serve the request; None if it can.
        wishes: Soft requirements, the strongest first.

    Raises:
        AssertionError: Every candidate refuses, although each list must end with one that never
            does.
    """
    able = [candidate for candidate in candidates if refusal(candidate) is None]
    assert able, "the last candidate never refuses"
    for kept in range(len(wishes), -1, -1):
        accepted = (
            candidate
            for candidate in able
            if all(wish.accepts(candidate) for wish in wishes[:kept])
        )
        chosen = next(accepted, None)
        if chosen is not None:
            return Chosen(chosen, _reason(chosen, candidates, refusal, wishes, kept))
    raise AssertionError("without wishes every able candidate is accepted")


def _reason(
    chosen: C,
    candidates: Sequence[C],
    refusal: Callable[[C], str | None],
    wishes: Sequence[Wish[C]],
    kept: int,
) -> Reason:
    said = ", ".join(wish.source for wish in wishes[:kept]) or "auto"
    text = f"{chosen.title} ({said})"
    for wish in wishes[kept:]:
        if wish.accepts(chosen):
            continue
        obstacle = _obstacle(candidates, refusal, wish, said)
        if wish.hint is None:
            return Reason(f"{text}; {wish.source} prefers another, but {obstacle}")
        unmet = Unmet(wish.hint, obstacle)
        return Reason(f"{text}; {wish.source} is not honoured: {obstacle}", unmet)
    return Reason(text)


def _obstacle(
    candidates: Sequence[C], refusal: Callable[[C], str | None], wish: Wish[C], said: str
) -> str:
    """Return why a wish had to be dropped."""
    accepted = [candidate for candidate in candidates if wish.accepts(candidate)]
    if not accepted:
        return "no kernel of this op supports it for this number of rows"
    refusals = [why for why in map(refusal, accepted) if why is not None]
    return refusals[0] if refusals else f"{said} excludes it"


def decisions_of(step: str, phases: Sequence[Phase], reason: Reason) -> list[Decision]:
    """Return the decisions behind phases; a matrix that is multiplied in parts counts once."""
    decisions = dict.fromkeys(
        Decision(
            step,
            phase.label,
            phase.name,
            reason.text + _tuned(phase.tuning_keys),
            reason.unmet,
            phase.tuning_keys,
        )
        for phase in phases
    )
    return list(decisions)


def _tuned(params: Sequence[AnyTuningKey]) -> str:
    """Return the suffix of a reason that names the tuned parameters."""
    return "".join(f"; {key.op} tuned: {key.used}" for key in params if key.is_tuned)


def unhonoured(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Return a line for each hint that is not honoured: the obstacle, the source and the ops."""
    ops: dict[Unmet, list[str]] = {}
    for decision in decisions:
        if decision.unmet is not None:
            ops.setdefault(decision.unmet, []).append(f"{decision.op} in {decision.step}")
    return tuple(_line(unmet, where) for unmet, where in ops.items())


def _line(unmet: Unmet, where: Sequence[str]) -> str:
    hint, more = unmet.hint, f" and {len(where) - 1} more" if len(where) > 1 else ""
    head = f"hint {hint.key}={hint.value} is not honoured"
    return f"{head}: {unmet.obstacle} (set by the {hint.source}; {where[0]}{more})"
