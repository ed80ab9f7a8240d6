"""The choice of the executor of a model: the first grid on which its decode pass has been tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_device.arena import DeviceArena

from rdrr_runtime.compile.choice.decision import Decision
from rdrr_runtime.exec.executor import Executor
from rdrr_runtime.exec.persistent.comparing import ComparingExecutor
from rdrr_runtime.exec.persistent.executor import POLLS, PersistentExecutor
from rdrr_runtime.exec.plan import Plan
from rdrr_runtime.phases.context import Grid

OP = "decode pass"


@dataclass(frozen=True)
class Persistence:
    """Whether and how to run the decode pass of a model in one dispatch.

    Attributes:
        grids: Grids to try, in order of preference.
        reason: Why the decode pass is to run so.
        polls: Looks at the other workgroups before a workgroup gives up.
        compares: Whether the decode pass runs as dispatches at first, and in one dispatch only once
            that has been found to be faster (`rdrr_runtime.exec.persistent.comparing`).
    """

    grids: Sequence[Grid]
    reason: str
    polls: int = POLLS
    compares: bool = False


def chosen_executor(
    plan: Plan, arena: DeviceArena, persistence: Persistence | None
) -> tuple[Executor | None, tuple[Decision, ...]]:
    """Return the executor of a plan's decode passes in one dispatch, and the decisions for it.

    Args:
        plan: The model.
        arena: Owner of the executor's buffers.
        persistence: The grids to try; None to launch each phase by itself.

    Returns:
        The executor, or None if every phase is launched by itself; and why.
    """
    if persistence is None or plan.host_tables:
        return None, ()
    if persistence.compares and model_refusal(plan) is None:
        decision = Decision("load", OP, "dispatches", persistence.reason)
        grid = next(iter(persistence.grids))
        candidate = PersistentExecutor(arena.device, arena, grid, persistence.polls)
        return ComparingExecutor(candidate), (decision,)
    executor, decision = persistent_executor(plan, arena, persistence)
    return executor, (decision,)


def persistent_executor(
    plan: Plan, arena: DeviceArena, persistence: Persistence
) -> tuple[PersistentExecutor | None, Decision]:
    """Return an executor that runs the decode pass of a plan in one dispatch.

    Args:
        plan: The model.
        arena: Owner of the executor's buffers.
        persistence: The grids to try.

    Returns:
        The executor, or None if no grid works; and the decision with its reason.
    """
    why = model_refusal(plan)
    if why is not None:
        return None, Decision("load", OP, "dispatches", why)
    why = "there is no grid to try"
    for grid in persistence.grids:
        executor = PersistentExecutor(arena.device, arena, grid, persistence.polls)
        why = executor.refusal(plan.decode)
        if why is None:
            return executor, Decision("load", OP, title(grid), persistence.reason)
    return None, Decision("load", OP, "dispatches", f"one dispatch does not work: {why}")


def model_refusal(plan: Plan) -> str | None:
    """Return why a model cannot run in one dispatch on any grid; None if it may."""
    if plan.graph.states:
        # A pass that is given up runs again, and states would absorb its token twice.
        return "one dispatch does not work for models with recurrent states"
    return None


def title(grid: Grid) -> str:
    """Return the name of a pass in one dispatch, for explanations."""
    return f"one dispatch, {grid.groups} workgroups of {grid.threads} threads"
