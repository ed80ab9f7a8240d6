"""From graph ops to dispatches: buffers for values, and the fusions that save passes over memory.

Fusions made here (each is a table row of what may follow what):

    Linear -> Residual    the product is added into the residual stream by the matmul itself
    Norm -> Residual      the norm of a branch is added into the stream by the norm kernel

Which kernel serves an op is decided by `rdrr_runtime.compile.select` and the op's own module in
`rdrr_runtime.phases`; the reasons are kept beside the dispatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch
from rdrr_manifests.graph import (
    Attention,
    Embed,
    Experts,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    Router,
    SigmoidGate,
)

from rdrr_runtime.compile.fuse import Fusion, fused_head
from rdrr_runtime.compile.lower_attention import lower_attention
from rdrr_runtime.compile.lower_experts import lower_experts, lower_router, lower_sigmoid_gate
from rdrr_runtime.compile.lower_head import lower_head, lower_sample
from rdrr_runtime.compile.pass_spec import Logits
from rdrr_runtime.compile.select import PLAIN, Choice, Select, Why, recorded
from rdrr_runtime.compile.values import Values, Workspace, count_readers
from rdrr_runtime.compile.weights import Weights
from rdrr_runtime.phases.argmax import choose_best
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.elementwise import residual_add, scale
from rdrr_runtime.phases.embed import embed
from rdrr_runtime.phases.expert_linear import Routed
from rdrr_runtime.phases.gated_activation import gated_activation
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.kv_cache import KvCache
from rdrr_runtime.phases.linear import linear
from rdrr_runtime.phases.matmul_int8 import matmul_int8
from rdrr_runtime.phases.matmul_int8 import suits as suits_int8
from rdrr_runtime.phases.quantize_rows import Int8Rows, int8_sizes, padded_rows, quantize_rows
from rdrr_runtime.phases.rmsnorm import post_norm_add, rms_norm, rms_norm_in_place
from rdrr_runtime.phases.rope import rope


@dataclass(frozen=True)
class Lowered:
    """Dispatches of one pass.

    Attributes:
        body: Everything up to the last layer.
        head: The final norm and the logits, of the rows that are wanted.
        sample: Argmax of the last row's logits, and the step's advance; of a tail, the likeliest
            id and the entropy of each row.
        logits: f32 [1 or rows, vocab].
        choices: What serves each op and why, in order.
    """

    body: tuple[Dispatch, ...]
    head: tuple[Dispatch, ...]
    sample: tuple[Dispatch, ...]
    logits: BufferSlice
    choices: tuple[Choice, ...]


class Lowering:
    """Lowers one graph for passes of up to `ctx.max_rows` token rows.

    Args:
        graph: What to compute.
        ctx: State and features.
        weights: Matrices and vectors.
        cache: Key-value cache.
        ropes: One table for each of `graph.ropes`.
        workspace: Buffers of values.
        select: Decides between kernels.
        wanted: Rows whose logits are computed.
        fusions: Tried in order at each op before the general lowering.
        step: What choices call the pass.
        max_buffers: Storage buffers that a kernel may bind.
    """

    def __init__(
        self,
        graph: Graph,
        ctx: OpContext,
        weights: Weights,
        cache: KvCache,
        ropes: tuple[BufferSlice, ...],
        workspace: Workspace,
        select: Select,
        *,
        wanted: Logits = Logits.LAST,
        fusions: Sequence[Fusion] = (),
        step: str = "prefill",
        max_buffers: int = 8,
    ) -> None:
        self.select = select
        self.max_buffers = max_buffers
        self._fusions = fusions
        self._step = step
        self.graph = graph
        self.ctx = ctx
        self.weights = weights
        self.cache = cache
        self.ropes = ropes
        self.workspace = workspace
        self.wanted = wanted
        self.values = Values(workspace, count_readers(graph.ops))
        self._out: list[Dispatch] = []
        self._choices: list[Choice] = []
        self._routed: dict[str, Routed] = {}
        self._int8_held: dict[int, str] = {}  # the value last put in int8, by its width

    def run(self) -> Lowered:
        """All dispatches, in order."""
        *ops, norm, head = self.graph.ops
        assert isinstance(norm, Norm), "the graph ends with a norm"
        assert isinstance(head, Head), "and the head"
        index = 0
        while index < len(ops):
            index += self._serve(ops, index)
        body, self._out = tuple(self._out), []
        fused = fused_head(self, norm, head) if self.fuses and self.ctx.max_rows == 1 else None
        if fused is None:
            logits = lower_head(self, norm, head)
            made = lower_sample(self, logits, head.weight.shape[0])
        else:
            logits, candidates, launch = fused
            made = choose_best(
                self.ctx, candidates, launch.grid.x, label="argmax", sites=launch.sites
            )
        end, self._out = tuple(self._out), []
        self.emit(made)
        return Lowered(body, end, tuple(self._out), logits, tuple(self._choices))

    def emit(self, dispatches: Sequence[Dispatch], why: Why = PLAIN) -> None:
        """Append dispatches, and why these."""
        self._out += dispatches
        self._choices += recorded(self._step, dispatches, why)

    @property
    def fuses(self) -> bool:
        """Whether one kernel may serve several ops."""
        return bool(self._fusions)

    def can_add(self, op: Linear | Norm | Experts, residual: Residual) -> bool:
        """Whether the op's output may be added into the stream where it is made."""
        readers = self.values.readers
        is_branch = op.out == residual.branch and residual.scale == 1.0
        return is_branch and readers[residual.branch] == 1 and readers[residual.x] == 1

    def _serve(self, ops: Sequence[Op], index: int) -> int:
        """Lower the op at `index`, and those after it that one kernel serves with it."""
        for fusion in self._fusions:
            served = fusion(self, ops, index)
            if served:
                return served
        following = ops[index + 1] if index + 1 < len(ops) else None
        if isinstance(following, Residual) and self._fuse(ops[index], following):
            return 2
        self.lower(ops[index])
        return 1

    def _fuse(self, op: Op, residual: Residual) -> bool:
        """Add a branch into the stream where it is made, if nothing else reads either."""
        values = self.values
        if not isinstance(op, Linear | Norm | Experts) or not self.can_add(op, residual):
            return False
        stream = values.get(residual.x)
        if isinstance(op, Experts):
            lower_experts(self, op, self._routed[op.router], stream, accumulate=True)
        elif isinstance(op, Linear):
            self._linear(op, stream, accumulate=True)
        else:
            self.emit(
                post_norm_add(
                    self.ctx,
                    stream,
                    values.get(op.x),
                    self.weights.vectors[op.weight.name],
                    width=op.width,
                    eps=op.eps,
                    offset=float(op.unit_offset),
                    label=f"{op.out}+residual",
                )
            )
        values.read(op.x)
        values.rename(residual.x, residual.out)
        return True

    def lower(self, op: Op) -> None:
        """Lower one op by itself."""
        match op:
            case Embed():
                self._embed(op)
            case Norm():
                self._norm(op)
            case Linear():
                out = self.values.take(op.out, op.weight.shape[0])
                self._linear(op, out, accumulate=False)
                self.values.read(op.x)
            case Rope():
                self._rope(op)
            case Attention():
                lower_attention(self, op)
            case GatedActivation():
                self._activation(op)
            case Router():
                self._routed[op.out] = lower_router(self, op)
            case Experts():
                out = self.values.take(op.out, op.downs[0].shape[0])
                lower_experts(self, op, self._routed[op.router], out, accumulate=False)
                self.values.read(op.x)
            case SigmoidGate():
                lower_sigmoid_gate(self, op)
            case Residual():
                self._residual(op)
            case Head():
                raise AssertionError("the head ends the graph")

    def _embed(self, op: Embed) -> None:
        out = self.values.take(op.out, op.weight.shape[1])
        table = self.weights.matrices[op.weight.name]
        self.emit(embed(self.ctx, table, out, scale=op.scale, label="embed"))

    def _norm(self, op: Norm) -> None:
        x, weight = self.values.get(op.x), self.weights.vectors[op.weight.name]
        if op.groups > 1 and self.values.readers[op.x] == 1:
            self.emit(
                rms_norm_in_place(
                    self.ctx,
                    x,
                    weight,
                    width=op.width,
                    eps=op.eps,
                    offset=float(op.unit_offset),
                    per_row=op.groups,
                    label=op.out,
                )
            )
            self.values.rename(op.x, op.out)
            return
        self.emit(
            rms_norm(
                self.ctx,
                x,
                weight,
                self.values.take(op.out, op.width * op.groups),
                width=op.width,
                eps=op.eps,
                offset=float(op.unit_offset),
                per_row=op.groups,
                label=op.out,
            )
        )
        self.values.read(op.x)

    def _linear(self, op: Linear, out: BufferSlice, *, accumulate: bool) -> None:
        bias = None if op.bias is None else self.weights.vectors[op.bias.name]
        weight, x = self.weights.matrices[op.weight.name], self.values.get(op.x)
        if not (self.select.rows_in_int8(weight) and suits_int8(self.ctx, weight)):
            self.matmul(weight, x, out, bias=bias, accumulate=accumulate, label=op.out)
            return
        why = self.select.why_matmul(self.ctx, (weight,), self.ctx.max_rows, int8=True)
        rows = self.in_int8(op.x, x, weight.k, why)
        made = matmul_int8(
            self.ctx, weight, rows, out, bias=bias, accumulate=accumulate, label=op.out
        )
        self.emit(made, why)

    def in_int8(self, name: str, x: BufferSlice, k: int, why: Why) -> Int8Rows:
        """A value in int8, which the linears that read it share."""
        rows = self.ctx.max_rows
        q_size, scales_size = int8_sizes(rows, k)
        target = Int8Rows(
            self.workspace.named(f"int8.{rows}.{k}", q_size),
            self.workspace.named(f"int8 scales.{rows}.{k}", scales_size),
            padded_rows(rows),
            k,
        )
        if self._int8_held.get(k) != name:
            self.emit(quantize_rows(self.ctx, x, target, label=f"{name}.int8"), why)
            self._int8_held[k] = name
        return target

    def matmul(
        self,
        weight: GpuWeight,
        x: BufferSlice,
        y: BufferSlice,
        *,
        bias: BufferSlice | None = None,
        accumulate: bool = False,
        single_row: bool = False,
        logits: bool = False,
        label: str,
    ) -> None:
        """A product by the general kernels, in f32."""
        plan = self.select.matmul((weight,))
        made = linear(
            plan.context(self.ctx),
            weight,
            x,
            y,
            bias=bias,
            accumulate=accumulate,
            single_row=single_row,
            logits=logits,
            tiled=True if plan.tiled else None,
            label=label,
        )
        rows = 1 if single_row else self.ctx.max_rows
        self.emit(made, self.select.why_matmul(self.ctx, (weight,), rows, int8=False))

    def _rope(self, op: Rope) -> None:
        spec = self.graph.ropes[op.table]
        self.emit(
            rope(
                self.ctx,
                self.values.get(op.x),
                self.ropes[op.table],
                heads=op.heads,
                head_dim=spec.head_dim,
                rotary_dim=spec.rotary_dim,
                label=op.out,
            )
        )
        self.values.rename(op.x, op.out)

    def _activation(self, op: GatedActivation) -> None:
        values = self.values
        out = values.take(op.out, op.width)
        self.emit(
            gated_activation(
                self.ctx,
                values.get(op.gate),
                None if op.up is None else values.get(op.up),
                out,
                width=op.width,
                activation=op.activation,
                label=op.out,
            )
        )
        values.read(op.gate, op.up)

    def _residual(self, op: Residual) -> None:
        values = self.values
        width = values.held[op.x][0]
        branch = values.get(op.branch)
        if op.scale != 1.0:
            self.emit(scale(self.ctx, branch, width=width, factor=op.scale, label=op.out))
        self.emit(residual_add(self.ctx, values.get(op.x), branch, width=width, label=op.out))
        values.read(op.branch)
        values.rename(op.x, op.out)
