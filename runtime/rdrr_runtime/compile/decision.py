"""One decision for each op: which kernel serves it, with which parameters, and why.

A choice is made from an ordered list of candidates. What hints and defaults ask for are wishes, the
strongest first. The first candidate that every wish accepts and that does not refuse the request
wins. Where there is none, the weakest wish is given up; if it was a hint, the decision says that it
is not honoured and what stands in its way. Explanations, `--strict-hints`, the profiler and the
tuner read the decisions and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.compile.hints import Hint
from rdrr_runtime.phases.phase import Phase


@dataclass(frozen=True)
class Unmet:
    """A hint that is not honoured, and what stands in its way."""

    hint: Hint
    obstacle: str


@dataclass(frozen=True)
class Reason:
    """Why something was chosen.

    Attributes:
        text: For a person; it names what was chosen.
        unmet: The hint that is not honoured, if there is one.
    """

    text: str
    unmet: Unmet | None = None


ONLY = Reason("the only kernel of this op")


@dataclass(frozen=True)
class Decision:
    """What serves one op in one pass.

    Attributes:
        step: Name of the pass, or `load`.
        op: What is served, e.g. `layer 3 qkv`.
        kernel: Label of the kernel that runs; of a decision at load, how it is stored.
        reason: Why this one.
        unmet: The hint that is not honoured, if there is one.
        params: Parameters that the kernel runs with, its own first.
    """

    step: str
    op: str
    kernel: str
    reason: str
    unmet: Unmet | None = None
    params: tuple[AnyTuningKey, ...] = ()


class Candidate(Protocol):
    """Something that may serve a request."""

    @property
    def title(self) -> str:
        """What it is, for explanations."""
        ...


C = TypeVar("C", bound=Candidate)
R = TypeVar("R")


@dataclass(frozen=True)
class Wish(Generic[C]):
    """Something that is asked of a choice.

    Attributes:
        source: Who asks for what, e.g. `q4kMatmul=fused_q4k (manifest)`.
        accepts: Whether a candidate is what is asked for.
        hint: The hint, where one asks.
    """

    source: str
    accepts: Callable[[C], bool]
    hint: Hint | None = None


@dataclass(frozen=True)
class Chosen(Generic[C]):
    """A candidate and why it was taken."""

    candidate: C
    reason: Reason


def choose(
    candidates: Sequence[C],
    refusal: Callable[[C], str | None],
    wishes: Sequence[Wish[C]],
    default: str = "auto",
) -> Chosen[C]:
    """Return the candidate that serves a request.

    Args:
        candidates: In order of preference.
        refusal: Why a candidate cannot serve the request; None if it can.
        wishes: What is asked for, the strongest first.
        default: What to say where nothing is asked for.

    Raises:
        AssertionError: Every candidate refuses; each list ends with one that never does.
    """
    able = [one for one in candidates if refusal(one) is None]
    assert able, "the last candidate never refuses"
    for kept in range(len(wishes), -1, -1):
        accepted = (one for one in able if all(wish.accepts(one) for wish in wishes[:kept]))
        found = next(accepted, None)
        if found is not None:
            return Chosen(found, _reason(found, candidates, refusal, wishes, kept, default))
    raise AssertionError("without wishes every able candidate is accepted")


def _reason(
    found: C,
    candidates: Sequence[C],
    refusal: Callable[[C], str | None],
    wishes: Sequence[Wish[C]],
    kept: int,
    default: str,
) -> Reason:
    said = ", ".join(wish.source for wish in wishes[:kept]) or default
    text = f"{found.title} ({said})"
    for wish in wishes[kept:]:
        if wish.accepts(found):
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
    """Return what stands in the way of a wish that was given up."""
    accepted = [one for one in candidates if wish.accepts(one)]
    if not accepted:
        return "no kernel of this op does so for so many rows"
    refusals = [why for why in map(refusal, accepted) if why is not None]
    return refusals[0] if refusals else f"{said} excludes it"


def decisions_of(step: str, phases: Sequence[Phase], reason: Reason) -> list[Decision]:
    """Return what is recorded of phases; the parts of one matrix count once."""
    found = dict.fromkeys(
        Decision(
            step,
            one.label,
            one.name,
            reason.text + _tuned(one.tuning_keys),
            reason.unmet,
            one.tuning_keys,
        )
        for one in phases
    )
    return list(found)


def _tuned(params: Sequence[AnyTuningKey]) -> str:
    """Return what comes from the tuned profile."""
    return "".join(f"; {one.op} tuned: {one.used}" for one in params if one.is_tuned)


def unhonoured(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Return a line for each hint that is not honoured, with what is in the way and where."""
    ops: dict[Unmet, list[str]] = {}
    for one in decisions:
        if one.unmet is not None:
            ops.setdefault(one.unmet, []).append(f"{one.op} in {one.step}")
    return tuple(_line(unmet, where) for unmet, where in ops.items())


def _line(unmet: Unmet, where: Sequence[str]) -> str:
    hint, more = unmet.hint, f" and {len(where) - 1} more" if len(where) > 1 else ""
    head = f"hint {hint.key}={hint.value} is not honoured"
    return f"{head}: {unmet.obstacle} (set by the {hint.source}; {where[0]}{more})"
