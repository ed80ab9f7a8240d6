"""Which kernel serves an op, and why: hints and the device's facts against what kernels can do.

Everything here is a decision; nothing is launched or uploaded. A hint that an op cannot follow is
never dropped in silence: the op's `Why` names it in `unmet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_device.kernels import Dispatch
from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.layouts import Layout

from rdrr_runtime.compile.hints import Hint, Policy
from rdrr_runtime.phases.attention import TILE_ROWS, AttentionKernel, AttentionSpec, tile_keys
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.formats import FORMATS
from rdrr_runtime.phases.gpu_weight import GpuWeight, reads_flat
from rdrr_runtime.phases.linear import GEMV_ROWS
from rdrr_runtime.phases.matvec import INT8_TYPES
from rdrr_runtime.phases.row_scales import SCALED_TYPES

FEW_SEQUENCES = 4
"""Rows, each of another text, that with one workgroup a head leave a GPU idle."""

EXPERTS_IN_F32 = "experts by columns or in parts have no int8 kernel"

EXPANSIONS = {"dequant_f16": "F16", "dequant_f32": "F32"}


@dataclass(frozen=True)
class Unmet:
    """A hint that something does not follow, and what stands in the way."""

    hint: Hint
    obstacle: str


@dataclass(frozen=True)
class Why:
    """The reason of a choice.

    Attributes:
        reason: For a person.
        unmet: The hint that is not followed.
    """

    reason: str
    unmet: Unmet | None = None

    @staticmethod
    def following(hint: Hint, obstacle: str) -> Why:
        """The hint is followed, unless there is an obstacle."""
        if not obstacle:
            return Why(str(hint))
        return Why(f"{hint} is not followed: {obstacle}", Unmet(hint, obstacle))


@dataclass(frozen=True)
class Choice:
    """What serves one op.

    Attributes:
        step: `load`, `decode` or `prefill`.
        op: What is served, e.g. `layer 3 qkv`.
        kernel: The kernel's label.
        reason: Why this one.
        unmet: The hint that is not followed.
    """

    step: str
    op: str
    kernel: str
    reason: str
    unmet: Unmet | None = None


PLAIN = Why("the only kernel of this op")


@dataclass(frozen=True)
class Storage:
    """What a matrix is kept as; `note` says why, where that is not as it is stored."""

    dtype: DType
    layout: Layout
    note: str = ""
    unmet: Unmet | None = None


@dataclass(frozen=True)
class MatmulPlan:
    """What hints ask of a product with some matrices.

    Attributes:
        int8: Multiply in int8 where the kernel can.
        tiled: Only the tiled kernel.
        subgroups: Subgroup operations may be used.
    """

    int8: bool = False
    tiled: bool = False
    subgroups: bool = True

    def context(self, ctx: OpContext) -> OpContext:
        """The context that kernels are chosen in."""
        if self.subgroups:
            return ctx
        return replace(ctx, features=ctx.features - {"subgroup"})


@dataclass(frozen=True)
class Select:
    """Decisions for one device and one policy.

    Attributes:
        policy: The hints.
        software: Whether the adapter is the CPU in disguise.
        max_binding: Bytes of the largest buffer that can be bound.
    """

    policy: Policy
    software: bool
    max_binding: int

    def storage(
        self,
        dtype: DType,
        layout: Layout,
        shape: tuple[int, int],
        *,
        matmul: bool,
        experts: bool = False,
    ) -> Storage:
        """How to keep a matrix [N, K]; `matmul` is false for a mere lookup table."""
        k = shape[1]
        hint = self.policy.get("q4kMatmul") if matmul and dtype.is_block else None
        if layout is Layout.FLAT and k % dtype.block_elements == 0:
            layout = Layout.ROW  # blocks that do not cross rows: the bytes are the same
        # Single values can be reordered without loss, and rows of K have the faster kernels.
        if hint and hint.value in EXPANSIONS:
            wide = EXPANSIONS[hint.value]
            return Storage(DTYPES[wide], Layout.ROW, f"{dtype} expanded to {wide} at load, {hint}")
        obstacle = _storage_obstacle(dtype, layout, k, experts=experts)
        if not obstacle:
            if layout is Layout.COLUMN and not dtype.is_block:
                return Storage(
                    dtype, Layout.ROW, f"{dtype} transposed from columns to rows at load"
                )
            return Storage(dtype, layout)
        unmet = Unmet(hint, obstacle) if hint else None
        # F32 rather than F16: without a hint the values stay exactly those of the package.
        note = f"{dtype} expanded to F32 at load, as {obstacle}"
        return Storage(DTYPES["F32"], Layout.ROW, note, unmet)

    def matmul(self, weights: Sequence[GpuWeight]) -> MatmulPlan:
        """What hints ask of one product with these matrices."""
        if all(one.dtype.is_block for one in weights):
            int8 = self._int8()[0] and all(one.dtype.name in INT8_TYPES for one in weights)
            return MatmulPlan(int8=int8)
        hint = self.policy.get("f16Matmul")
        value = hint.value if hint else "auto"
        return MatmulPlan(tiled=value == "tiled", subgroups=value != "gemv")

    def scales_rows(self, dtype: DType, *, by_column: bool = False) -> bool:
        """Whether a matrix of linear layers gets the scales that products in int8 need."""
        if by_column:
            # Only where a hint asks: what several rows gain has not been measured on a GPU yet.
            return self.policy.get("q4kMatmul") is not None and self._int8()[0]
        return dtype.name in SCALED_TYPES and self._scalars_in_int8()

    def rows_in_int8(self, weight: GpuWeight) -> bool:
        """Whether products of many rows with this matrix are wanted in int8."""
        if weight.dtype.is_block:
            return self.matmul((weight,)).int8
        return weight.row_scales is not None and self._scalars_in_int8()

    def why_matmul(
        self, ctx: OpContext, weights: Sequence[GpuWeight], rows: int, *, int8: bool
    ) -> Why:
        """Why a product was served as it was: in int8 or not, for `rows` token rows."""
        notes = dict.fromkeys(one.note for one in weights if one.note)
        parts = [Why(note) for note in notes]
        if any(one.dtype.is_block for one in weights):
            parts.append(self._why_blocks(ctx, weights, int8=int8))
        if not all(one.dtype.is_block for one in weights):
            parts.append(self._why_scalars(ctx, rows, int8=int8))
        unmet = [one.unmet for one in parts if one.unmet]
        return Why("; ".join(one.reason for one in parts), unmet[0] if unmet else None)

    def why_experts(
        self, ctx: OpContext, weight: GpuWeight, *, tiled: bool, int8: bool = False
    ) -> Why:
        """Why a product with routed experts was served as it was."""
        hint = self.policy.get("q4kMatmul" if weight.dtype.is_block else "f16Matmul")
        apart, together = (
            "each route reads its expert's weights",
            "an expert's rows share its weights",
        )
        one = Why(f"auto: {together if tiled else apart}")
        if int8:
            who, unmet = self._int8()[1:]
            one = Why(f"{who}: int8 activations, {together if tiled else apart}", unmet)
        elif hint and hint.value == "fused_q4k_int8":
            one = Why.following(hint, EXPERTS_IN_F32)
        elif hint and hint.value == "tiled":
            one = Why.following(
                hint, "" if tiled else "experts of a small batch have no tiled kernel"
            )
        elif hint and hint.value.startswith("gemv") and tiled:
            one = Why(f"{hint} is for few rows; many rows are tiled")
        elif hint and hint.value == "gemv_subgroup" and not ctx.subgroups:
            one = Why.following(hint, "the device has no feature subgroup")
        elif hint:
            one = Why(str(hint))
        return replace(one, reason=f"{weight.note}; {one.reason}") if weight.note else one

    def _why_blocks(self, ctx: OpContext, weights: Sequence[GpuWeight], *, int8: bool) -> Why:
        wanted, who, unmet = self._int8()
        if int8 == wanted:
            return Why(f"{who}: {'int8' if int8 else ctx.values} activations", unmet)
        columns = any(one.by_column for one in weights)
        if ctx.max_rows > 1:
            what = "no int8 kernel serves it for several rows"
            if columns:
                what = "columns are in int8 for several rows only where a hint asks"
            return Why(f"{who}: f32 activations, as {what}")
        obstacle = "these matrices do not suit the int8 kernel"
        hint = self.policy.get("q4kMatmul")
        unmet = Unmet(hint, obstacle) if hint else None
        return Why(f"{who}: f32 activations, as {obstacle}", unmet)

    def _why_scalars(self, ctx: OpContext, rows: int, *, int8: bool) -> Why:
        if int8:
            return Why(f"{self._int8()[1]}: int8 activations, weights of 16 bits in two of int8")
        hint = self.policy.get("f16Matmul")
        if hint is None:
            shared = "subgroups" if ctx.subgroups else "workgroup memory"
            few = f"auto: few rows, sums through {shared}"
            return Why("auto: many rows are tiled" if rows > GEMV_ROWS else few)
        if hint.value == "tiled":
            return Why(str(hint))
        if rows > GEMV_ROWS:
            return Why(f"{hint} is for few rows; many rows are tiled")
        obstacle = ""
        if hint.value == "gemv_subgroup" and not ctx.subgroups:
            obstacle = "the device has no feature subgroup"
        return Why.following(hint, obstacle)

    def _scalars_in_int8(self) -> bool:
        """Whether products with single values are wanted in int8: no hint names another kernel."""
        return self.policy.get("f16Matmul") is None and self._int8()[0]

    def _int8(self) -> tuple[bool, str, Unmet | None]:
        """Whether activations are int8 where they can be, who says so, and the hint this breaks."""
        matmul, precision = self.policy.get("q4kMatmul"), self.policy.get("computePrecision")
        asked = matmul is not None and matmul.value == "fused_q4k_int8"
        if precision and not (asked and matmul and matmul.outranks(precision)):
            unmet = None
            if asked and matmul and not precision.outranks(matmul):
                unmet = Unmet(matmul, f"{precision} excludes int8")
            return False, str(precision), unmet
        if matmul:
            return asked, str(matmul), None
        adapter = "a software adapter" if self.software else "a hardware adapter"
        return not self.software, f"auto on {adapter}", None

    def precision(self, features: frozenset[str]) -> Choice:
        """What activations are between the ops: `kernel` of the choice is `f32` or `f16`."""
        hint = self.policy.get("computePrecision")
        if hint is None:
            return Choice("load", "activations", "f32", "auto: f32 is what the kernels compute in")
        obstacle = ""
        if hint.value == "f16" and "shader-f16" not in features:
            obstacle = "the device has no feature shader-f16"
        elif hint.value == "f16" and self._int8()[0]:
            obstacle = f"{self.policy.get('q4kMatmul')} asks for activations in int8"
        why = Why.following(hint, obstacle)
        values = "f32" if obstacle else hint.value
        return Choice("load", "activations", values, why.reason, why.unmet)

    def fuses_attention(self) -> bool:
        """Whether decoding may use the attention that is fused with projections and cache."""
        return self.policy.get("attentionDecode") is None

    def attention(self, spec: AttentionSpec, ctx: OpContext) -> tuple[AttentionKernel, Why]:
        """The kernel of a layer's attention and the reason."""
        is_decode = ctx.max_rows == 1
        hint = self.policy.get("attentionDecode" if is_decode else "attentionPrefill")
        if hint is None:
            return self._auto_attention(spec, ctx)
        which = AttentionKernel(hint.value)
        obstacle = self._obstacle(which, spec, ctx)
        return AttentionKernel.STREAMING if obstacle else which, Why.following(hint, obstacle)

    def _auto_attention(self, spec: AttentionSpec, ctx: OpContext) -> tuple[AttentionKernel, Why]:
        if ctx.state.places is not None:
            few = ctx.max_rows <= FEW_SEQUENCES and spec.splits > 1
            order = {AttentionKernel.SPLIT_KV: "few rows, many keys"} if few else {}
        elif ctx.max_rows > 1:
            # Prompts of 512 and 2048 tokens on an H200: as fast as streaming or up to 17 % faster.
            order = {
                AttentionKernel.TILED_LARGE: "many rows share the keys they read",
                AttentionKernel.TILED_SMALL: "workgroup memory holds no larger tile",
            }
        else:
            # A single row cannot fill a GPU with one workgroup a head once there are many keys.
            order = {AttentionKernel.SPLIT_KV: "one row, many keys"} if spec.splits > 1 else {}
        for which, reason in order.items():
            if not self._obstacle(which, spec, ctx):
                return which, Why(f"auto: {reason}")
        return AttentionKernel.STREAMING, Why("auto: the kernel that serves every size")

    def _obstacle(self, which: AttentionKernel, spec: AttentionSpec, ctx: OpContext) -> str:
        """Why a variant cannot run here, or empty."""
        if which in TILE_ROWS and ctx.state.places is not None:
            return "rows of several sequences share no keys"
        if which in TILE_ROWS and not tile_keys(spec, TILE_ROWS[which], ctx.workgroup_storage):
            size = f"{TILE_ROWS[which]} rows of {spec.cache.head_dim} elements"
            return f"{size} exceed the device's workgroup memory"
        scratch = spec.scratch_size(ctx.max_rows)
        if which is AttentionKernel.SPLIT_KV and scratch > self.max_binding:
            return f"its scratch of {scratch} bytes exceeds the device's binding limit"
        return ""


def _storage_obstacle(dtype: DType, layout: Layout, k: int, *, experts: bool) -> str:
    """Why no kernel reads a matrix as it is stored, or empty."""
    if dtype.name not in FORMATS:
        return f"no kernel reads {dtype}"
    if experts and layout is Layout.FLAT and dtype.is_block:
        return "experts are read by rows or columns"
    if layout is Layout.FLAT and not reads_flat(dtype, k):
        return "its flat blocks cross rows within a unit of weights"
    return ""


def recorded(step: str, dispatches: Sequence[Dispatch], why: Why) -> tuple[Choice, ...]:
    """Dispatches as choices; the parts of one matrix count once."""
    found = dict.fromkeys((one.label, one.kernel.label, _tuned(one)) for one in dispatches)
    return tuple(
        Choice(step, op, label, why.reason + tuned, why.unmet) for op, label, tuned in found
    )


def _tuned(one: Dispatch) -> str:
    """What of a dispatch comes from the tuned profile."""
    said = [f"; {site.op} tuned: {site.used}" for site in one.sites if site.is_tuned]
    return "".join(said)


def unhonoured(choices: Sequence[Choice]) -> tuple[str, ...]:
    """A line for each hint that some op does not follow, with what is in the way and the ops."""
    ops: dict[Unmet, list[str]] = {}
    for one in choices:
        if one.unmet is not None:
            ops.setdefault(one.unmet, []).append(f"{one.op} in {one.step}")
    return tuple(_line(unmet, where) for unmet, where in ops.items())


def _line(unmet: Unmet, where: Sequence[str]) -> str:
    hint, more = unmet.hint, f" and {len(where) - 1} more" if len(where) > 1 else ""
    head = f"hint {hint.key}={hint.value} is not followed"
    return f"{head}: {unmet.obstacle} (set by the {hint.source}; {where[0]}{more})"
