"""The schema of a program, version 1.

All references between parts are indices. Buffers are named by ranges, a table that phases and load
steps share. A number may grow with the context, only the work of a phase depends on the rows of a
pass, and nothing depends on the position except the step that the host writes.
"""

from __future__ import annotations

from typing import Literal

from rdrr_format.printing import printable

from rdrr_runtime.program.amounts import Amount, Count, Growing, Hash, Index, ProgramModel, Size
from rdrr_runtime.program.dispatches import Phase
from rdrr_runtime.program.steps import LoadStep
from rdrr_runtime.program.vision import Images, Tower

FORMAT = "rdrr-program"
VERSION = 1

Role = Literal[
    "weight",
    "vector",
    "rope",
    "kv",
    "state",
    "step",
    "ring",
    "logits",
    "sampler",
    "constant",
    "value",
]


class Contexts(ProgramModel):
    """The context lengths that a program serves: multiples of a number, in a range.

    Attributes:
        least: Smallest context.
        most: Largest context.
        multiple: Every context is a multiple of this.
    """

    least: Size
    most: Size
    multiple: Size = 1


class Needs(ProgramModel):
    """What a device must support. The largest binding is the largest range.

    Attributes:
        features: WebGPU features, by WebGPU's names.
        language: WGSL language features.
        limits: Least limits that are not WebGPU's defaults, by name with dashes.
    """

    features: tuple[str, ...] = ()
    language: tuple[str, ...] = ()
    limits: dict[str, Count]


class RecordFields(ProgramModel):
    """A record that the host writes, see `rdrr_runtime.records`.

    Attributes:
        fields: Type of each 32-bit word, by the name of the field, in order.
        words: Words of the record; those behind the last field are zero.
    """

    fields: dict[str, Literal["u32", "f32"]]
    words: Count


class Binding(ProgramModel):
    """A storage buffer that a kernel binds.

    Attributes:
        name: Name in the shader.
        access: WebGPU's type of the binding.
    """

    name: str
    access: Literal["read-only-storage", "storage"]


class Kernel(ProgramModel):
    """A compute pipeline.

    Attributes:
        label: Name for messages.
        shader: SHA-256 of the shader.
        entry: Name of the entry point.
        constants: Values of the override constants.
        bindings: Storage buffers of group 0, in binding order.
        trusted: Whether the shader checks every index and bounds every loop itself. A player should
            not believe it of a file from a stranger.
        general: Whether the shader is about as fast with its constants in a uniform buffer.
    """

    label: str
    shader: Hash
    entry: str
    constants: dict[str, float | int | Growing]
    bindings: tuple[Binding, ...]
    trusted: bool = False
    general: bool = False


class Buffer(ProgramModel):
    """A storage buffer, which begins as zeros.

    Attributes:
        size: Bytes.
        role: What it holds.
    """

    size: Amount
    role: Role


class Range(ProgramModel):
    """A range of a buffer.

    Attributes:
        buffer: Index of the buffer.
        offset: First byte.
        size: Bytes.
    """

    buffer: Index
    offset: Amount = 0
    size: Amount


class Pass(ProgramModel):
    """A pass over consecutive token rows of a sequence.

    Attributes:
        name: Name, e.g. `decode`.
        rows: Most rows.
        body: The layers.
        head: The logits of the last row.
        sample: The argmax, which also writes the next step and the ring.
    """

    name: str
    rows: Size
    body: tuple[Phase, ...]
    head: tuple[Phase, ...]
    sample: tuple[Phase, ...]


class RowsPass(ProgramModel):
    """A pass that leaves a row of values for each token of a text, from its first token on.

    Attributes:
        rows: Most rows.
        phases: The phases.
        result: Index of the range of the result, [rows, stride] bytes.
        width: Values of a row.
        stride: Bytes from one row to the next.
        dtype: Type of the values.
        segments: Index of the range of a record `segment` for each row, in models whose rows attend
            to all rows of their text; the host writes them before the pass. None in others.
    """

    rows: Amount
    phases: tuple[Phase, ...]
    result: Index
    width: Size
    stride: Size
    dtype: Literal["F16", "F32"]
    segments: Index | None = None


class Sampling(ProgramModel):
    """The phases that sample instead of `Pass.sample`, for some options.

    Attributes:
        top_k: Whether top-k is set.
        top_p: Whether top-p is below 1.
        phases: The phases.
    """

    top_k: bool
    top_p: bool
    phases: tuple[Phase, ...]


class Logprobs(ProgramModel):
    """The log-probabilities of a token, recorded behind the phases that choose it.

    The record of step s, at s modulo the words of the ring, has 2 + 2 `top` words: the logarithm of
    the sum of exp(logit), the logit of the token, and logit and id of the most probable tokens.

    Attributes:
        top: Number of most probable tokens in a record.
        records: Index of the range of the records, as many as the ring has words.
        phases: The phases.
    """

    top: Size
    records: Index
    phases: tuple[Phase, ...]


class Sampler(ProgramModel):
    """Sampling on the device. The attributes up to `entries` are indices of ranges.

    Attributes:
        params: The record `sampler`.
        counts: How often each token was seen, u32.
        bias: What is added to each logit, f32.
        mask: A bit for each token that may be sampled.
        entries: The record `entries` and up to `most_entries` times `entry`.
        most_entries: Most entries at a time.
        scatter: Writes the entries to counts and bias.
        samplings: The phases by options, one of each.
        logprobs: What records log-probabilities; None in programs that cannot.
    """

    params: Index
    counts: Index
    bias: Index
    mask: Index
    entries: Index
    most_entries: Size
    scatter: Phase
    samplings: tuple[Sampling, ...]
    logprobs: Logprobs | None = None


class Program(ProgramModel):
    """A program.

    Attributes:
        format: Always `rdrr-program`.
        version: Version of the schema.
        model: Id of the package that it was made for.
        vocabulary: Logits of a row.
        ends: Ids that end a text.
        kv_dtype: Type of the elements of the key-value cache.
        contexts: The context lengths that it serves.
        needs: What the device must support.
        records: The records that the host writes, by name.
        shaders: WGSL by its SHA-256, without comments; a file may leave out those of a pool.
        kernels: Pipelines.
        buffers: All buffers but those that load steps need for a moment.
        ranges: Ranges of buffers, which phases and load steps name by index.
        step: Index of the range with the records `step_header` and `step_row`.
        ring: Index of the range of the ring, u32; the id of step s is word `s mod words`.
        load: What fills the buffers, in order.
        passes: The passes; the first is `decode`, and the others are for prompts, shortest first.
            A model that generates no text has none.
        sampler: Sampling on the device; None where there are no passes.
        hidden: Leaves the hidden states after the final norm, of which embeddings and labels are
            made; None for a package that makes neither.
        scores: Leaves the logits behind each token; None if they were not asked for.
        images: What rows of images need; None for a model that sees none.
        tower: The vision tower of a program that is one, and has no passes.
    """

    format: Literal["rdrr-program"] = "rdrr-program"
    version: Literal[1] = 1
    model: str
    vocabulary: Size
    ends: tuple[Index, ...]
    kv_dtype: str
    contexts: Contexts
    needs: Needs
    records: dict[str, RecordFields]
    shaders: dict[str, str]
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    ranges: tuple[Range, ...]
    step: Index
    ring: Index
    load: tuple[LoadStep, ...]
    passes: tuple[Pass, ...]
    sampler: Sampler | None = None
    hidden: RowsPass | None = None
    scores: RowsPass | None = None
    images: Images | None = None
    tower: Tower | None = None

    def __repr__(self) -> str:
        counts = f"{len(self.passes)} passes, {len(self.kernels)} kernels"
        return printable(f"<Program of {self.model!r}: {counts}, {self.contexts.most} slots>")
