"""The ops that a product of one row or of a small batch fuses: its prologue and its epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Clamp

from rdrr_runtime.phases.phase import Record, choice
from rdrr_runtime.phases.products.added_branch import AddedBranch
from rdrr_runtime.phases.rows.gated_activation import formula_of
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


@dataclass(frozen=True, kw_only=True)
class InputRecord(Record):
    """Parameters of a shader that applies a fused op to the input of a product.

    Attributes:
        input: Which op is fused, see `Input.kind`.
        eps: For `norm`: epsilon added to the mean square.
        offset: For `norm`: number added to the gain.
        splits: For `combine`: partial results of each head.
        head_dim: For `combine` and `gated`: head dimension.
        blocks: For `gated`: sums of squares of each head.
        input_gate: Activation of the gates that multiply the input; empty without gates.
        gate_stride: Elements from the gates of a head to those of the next.
        gate_first: Index of the first gate.
        input_gain: For `layer_norm`: whether the norm has a weight.
        input_bias: For `layer_norm`: whether the norm has a bias.
    """

    input: str = choice()
    input_gate: str = choice("")
    input_gain: bool = choice(default=False)
    input_bias: bool = choice(default=False)
    eps: float | None = None
    offset: float | None = None
    splits: int | None = None
    head_dim: int | None = None
    blocks: int | None = None
    gate_stride: int | None = None
    gate_first: int | None = None


@dataclass(frozen=True)
class HeadGates:
    """Gates that multiply the elements of heads before a product.

    Attributes:
        gates: Buffer that holds them, of the type of activations.
        activation: Activation of the gates, `sigmoid` or `silu`.
        stride: Elements from the gates of a head to those of the next.
        first: Index of the first gate.
    """

    gates: BufferSlice
    activation: str
    stride: int
    first: int

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `InputRecord`."""
        return {
            "input_gate": self.activation,
            "gate_stride": self.stride,
            "gate_first": self.first,
        }


@dataclass(frozen=True)
class GatedNorm:
    """The norm of each head of a recurrent layer's output, and its gates, before a product.

    Attributes:
        squares: f32 [heads, blocks], whose sum over a head is that of the squares of its elements.
        blocks: Sums of each head.
        head_dim: Elements of a head, a multiple of 4.
        gain: Norm weight, f32 [head_dim].
        eps: Epsilon added to the mean square.
        gates: The gates.
        offset: Number added to the gain.
    """

    kind: ClassVar[str] = "gated"

    squares: BufferSlice
    blocks: int
    head_dim: int
    gain: BufferSlice
    eps: float
    gates: HeadGates
    offset: float = 0.0

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        return {"squares": self.squares, "gain": self.gain, "gates": self.gates.gates}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `InputRecord`."""
        return {
            "eps": self.eps,
            "offset": self.offset,
            "head_dim": self.head_dim,
            "blocks": self.blocks,
            **self.gates.fields,
        }


@dataclass(frozen=True)
class RowNorm:
    """The RMSNorm before a product.

    Attributes:
        gain: Norm weight, f32 [K].
        eps: Epsilon added to the mean square.
        offset: Number added to the gain (Gemma: 1).
    """

    kind: ClassVar[str] = "norm"

    gain: BufferSlice
    eps: float
    offset: float = 0.0

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        return {"gain": self.gain}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `InputRecord`."""
        return {"eps": self.eps, "offset": self.offset}


@dataclass(frozen=True)
class GatedPair:
    """The activation that joins gate and up before a product of many rows.

    Attributes:
        up: f32 [rows, K]; None if gate and up are the two halves of a row of x.
        activation: As in snippets/activate.wgsl.
        clamp: The clamped SwiGLU to compute instead; None for the usual formula.
    """

    kind: ClassVar[str] = "gate"

    up: BufferSlice | None
    activation: str
    clamp: Clamp | None = None

    @property
    def act(self) -> str:
        """The formula of snippets/activate.wgsl."""
        return formula_of(self.activation, self.clamp)

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        return {} if self.up is None else {"up": self.up}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `QuantizeRows`."""
        return {"joined": self.up is None, "act": self.act, "clamp": self.clamp}


@dataclass(frozen=True)
class RowLayerNorm:
    """The LayerNorm before a product with one row.

    Attributes:
        gain: Norm weight, f32 [K]; None for a factor of 1.
        bias: f32 [K]; None for 0.
        eps: Epsilon added to the variance.
        offset: Number added to the gain.
    """

    kind: ClassVar[str] = "layer_norm"

    gain: BufferSlice | None
    bias: BufferSlice | None
    eps: float
    offset: float = 0.0

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        operands = {"gain": self.gain, "shift": self.bias}
        return {name: operand for name, operand in operands.items() if operand is not None}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `InputRecord`."""
        return {
            "eps": self.eps,
            "offset": None if self.gain is None else self.offset,
            "input_gain": self.gain is not None,
            "input_bias": self.bias is not None,
        }


@dataclass(frozen=True)
class AttentionSplits:
    """The partial results of split attention, combined when a product reads its input.

    Attributes:
        stats: f32 [rows, heads, splits, 2], maximum score and exp sum, as attention writes it.
        splits: Partial results of each head.
        head_dim: Head dimension, a multiple of 16.
        gates: Gates of the combined results, for one row only; None for none.
    """

    kind: ClassVar[str] = "combine"

    stats: BufferSlice
    splits: int
    head_dim: int
    gates: HeadGates | None = None

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        gates = {} if self.gates is None else {"gates": self.gates.gates}
        return {"stats": self.stats, **gates}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `InputRecord`."""
        gates = {} if self.gates is None else self.gates.fields
        return {"splits": self.splits, "head_dim": self.head_dim, **gates}


@dataclass(frozen=True)
class Input:
    """The input of a product, with the op that is fused before it.

    Attributes:
        x: [rows, K]; with `AttentionSplits` the partial results, f32
            [rows, heads, splits, head_dim].
        before: The norm to apply first, or the partial results to combine first; None for neither.
            `RowLayerNorm` and `GatedNorm` are for one row only, `GatedPair` is for tiles in int8.
        int8: Whether x is already in int8, as a gated product writes it, see `Output`.
        scales: For one row in int8: (f32 scale, i32 sum of the codes) [K / 16]; None otherwise.
        name: Name of the value, for the label of the phase that quantizes a small batch to int8.
        added: A normed branch that one row adds to x before that; None for none. Its weights
            include the gain of a `RowNorm`.
    """

    x: BufferSlice
    before: RowNorm | RowLayerNorm | AttentionSplits | GatedNorm | GatedPair | None = None
    int8: bool = False
    scales: BufferSlice | None = None
    name: str = ""
    added: AddedBranch | None = None

    @property
    def kind(self) -> str:
        """The kind of the op before, or else `plain`; `quantized` if x is in int8."""
        if self.before is not None:
            return self.before.kind
        return "quantized" if self.int8 else "plain"

    @property
    def title(self) -> str:
        """The fused ops, for names of kernels: `kind`, after `branch+` if a branch is added."""
        return self.kind if self.added is None else f"branch+{self.kind}"

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which shaders declare them."""
        scales = {} if self.scales is None else {"x_scales": self.scales}
        before = {} if self.before is None else self.before.buffers
        added = {} if self.added is None else self.added.buffers
        return {"x": self.x, **scales, **before, **added}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of the records of fused ops."""
        before = {} if self.before is None else self.before.fields
        return before if self.added is None else before | self.added.fields

    def partials(self, k: int) -> int:
        """Return the number of partial results combined for a row, over all heads together."""
        splits = self.before
        return k // splits.head_dim * splits.splits if isinstance(splits, AttentionSplits) else 0


@dataclass(frozen=True)
class OutputScore:
    """A logit whose sigmoid multiplies all outputs of a product with one row.

    Attributes:
        logits: f32, a buffer that holds the logit.
        at: Its index.
    """

    logits: BufferSlice
    at: int


@dataclass(frozen=True)
class OutputFactors:
    """Values that multiply the outputs of a product with one row after their activation.

    Attributes:
        values: Buffer that holds them, of the type of activations.
        first: Index of the factor of the first output.
    """

    values: BufferSlice
    first: int


@dataclass(frozen=True)
class Down:
    """The matrix that multiplies the gated pairs of a product with one row in the same phase.

    Attributes:
        weight: The down projection [N, K], where K is the number of pairs.
        sums: Results in fixed point, see snippets/fixed_point.wgsl, which must be zeros before;
            then as much memory that the phase clears, for the results of the next such phase.
    """

    weight: GpuWeight
    sums: BufferSlice


@dataclass(frozen=True)
class Output:
    """The output of a product, with the op that is fused after it.

    Attributes:
        ys: Results [rows, N]. One buffer for the outputs of all matrices side by side or, for a
            small batch and on matrices of subgroups, one for each matrix; for `gate` one buffer of
            the gated pairs. f32 for `best`. None for `down`.
        kind: `store`, `add` (to y), `gate` (activation(gate) * up), or for one row and for experts
            `activate` (activation of the output), or for one row `best` (store and also find the
            largest output) or `down` (gate, and multiply the pairs by a further matrix).
        bias: f32, one value for each output of all matrices, or None.
        activation: For `gate`, `down` and `activate`: as in snippets/activate.wgsl.
        clamp: For `gate` and `down`: the clamped SwiGLU to compute instead; None for the usual
            formula.
        best: For `best`: (f32 value, u32 index) of the largest output of each item.
        int8: For `gate`: quantize the gated pairs to int8; a small batch gets the layout that
            `quantize_small_batch` writes.
        halves: For a small batch in int8: whether each 16 pairs have a scale, instead of each 32.
        scales: For one row in int8: buffer for the scales, see `Input.scales`; None otherwise.
        score: For `store` and `add` of one row: a logit whose sigmoid multiplies the products
            before they are added; None for none.
        factors: For `activate`: values that multiply the outputs; None for none.
        down: For `down`: the further matrix and its results.
    """

    ys: tuple[BufferSlice, ...]
    kind: str = "store"
    bias: BufferSlice | None = None
    activation: str = ""
    clamp: Clamp | None = None
    best: BufferSlice | None = None
    int8: bool = False
    halves: bool = False
    scales: BufferSlice | None = None
    score: OutputScore | None = None
    factors: OutputFactors | None = None
    down: Down | None = None

    @property
    def is_gated(self) -> bool:
        """Whether the outputs of gate and up are joined by an activation."""
        return self.kind in ("gate", "down")

    @property
    def act(self) -> str:
        """The formula of `gate` for snippets/activate.wgsl."""
        return formula_of(self.activation, self.clamp)
