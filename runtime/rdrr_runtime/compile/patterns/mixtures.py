"""The pattern of a mixture of experts, from the norm before it to the residual after it."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph.ops import (
    Experts,
    GatedActivation,
    Linear,
    Norm,
    Op,
    Residual,
    Router,
    SigmoidGate,
    values_read,
)

from rdrr_runtime.compile.patterns.layers import Body


@dataclass(frozen=True)
class SharedExpert:
    """The ops of a shared expert.

    Attributes:
        linears: Gate and up, or the one matrix that holds both.
        activation: The activation that joins them.
        down: The down projection.
        score: The sigmoid gate of its output; None for none.
    """

    linears: tuple[Linear, ...]
    activation: GatedActivation
    down: Linear
    score: SigmoidGate | None

    @property
    def out(self) -> str:
        """Name of its output."""
        return self.down.out if self.score is None else self.score.out

    @property
    def count(self) -> int:
        """Number of ops."""
        return len(self.linears) + 2 + (self.score is not None)


@dataclass(frozen=True)
class Mixture:
    """The ops of a mixture of experts.

    Attributes:
        norm: The norm that the router and the experts read.
        router: The router.
        experts: The routed experts.
        shared: The shared expert; None for none.
        residual: The residual that adds their sum to the stream.
    """

    norm: Norm
    router: Router
    experts: Experts
    shared: SharedExpert | None
    residual: Residual

    @property
    def count(self) -> int:
        """Number of ops."""
        return 4 + (0 if self.shared is None else self.shared.count + 1)


def match_mixture(body: Body, index: int) -> Mixture | None:
    """Match norm, router, experts, maybe a shared expert and its sum, and the residual.

    The stream may be changed before the last of these ops, so nothing else may read its old value,
    nor any value in between.
    """
    norm, router, experts = (body.at(index + offset) for offset in range(3))
    if not isinstance(norm, Norm) or not norm.is_plain or norm.groups != 1:
        return None
    if not isinstance(router, Router) or not isinstance(experts, Experts):
        return None
    end, branch = index + 3, experts.out
    shared = _match_shared(body, end, norm.out)
    if shared is not None:
        joined = body.at(end + shared.count)
        if not _adds(joined, branch, shared.out):
            return None
        assert isinstance(joined, Residual), "only residuals add"
        end, branch = end + shared.count + 1, joined.out
    residual = body.at(end)
    if not isinstance(residual, Residual) or not _adds(residual, norm.x, branch):
        return None
    mixture = Mixture(norm, router, experts, shared, residual)
    return mixture if _is_closed(body, index, mixture) else None


def _match_shared(body: Body, index: int, x: str) -> SharedExpert | None:
    linears: tuple[Linear, ...] = ()
    while len(linears) < 2 and isinstance(op := body.at(index + len(linears)), Linear):
        linears = (*linears, op)
    activation, down, score = (body.at(index + len(linears) + offset) for offset in range(3))
    if not isinstance(activation, GatedActivation) or not isinstance(down, Linear):
        return None
    operands = [value for value in (activation.gate, activation.up) if value is not None]
    reads = [linear.out for linear in linears] == operands and all(
        linear.x == x for linear in linears
    )
    has_bias = any(linear.bias is not None for linear in (*linears, down))
    if not (reads and activation.is_plain) or down.x != activation.out or has_bias:
        return None
    scored = isinstance(score, SigmoidGate) and (score.x, score.branch) == (x, down.out)
    gated = score if isinstance(score, SigmoidGate) and scored else None
    return SharedExpert(linears, activation, down, gated)


def _adds(op: Op | None, x: str, branch: str) -> bool:
    is_sum = isinstance(op, Residual) and op.scale == 1.0
    return is_sum and isinstance(op, Residual) and (op.x, op.branch) == (x, branch)


def _is_closed(body: Body, index: int, mixture: Mixture) -> bool:
    """Return whether only the ops of a mixture read its inner values, and it reads nothing else."""
    ops = body.ops[index : index + mixture.count]
    read = [value for op in ops for value in values_read(op)]
    inner = {op.out for op in ops[:-1]}
    alone = all(read.count(name) == body.readers[name] for name in {*inner, mixture.norm.x})
    same = mixture.experts.x == mixture.router.x == mixture.norm.out
    return (
        alone
        and same
        and mixture.experts.router == mixture.router.out
        and set(read)
        <= {
            *inner,
            mixture.norm.x,
        }
    )
