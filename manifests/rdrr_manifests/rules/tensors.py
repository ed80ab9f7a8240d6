"""Rules on the table of tensors: types, sizes and byte spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout

from rdrr_manifests.faults import tensor_field
from rdrr_manifests.models import Tensor
from rdrr_manifests.rules.subject import Finding, Rule, Subject

FOREIGN_DTYPES = frozenset(
    {"W4A16", "F64", "I32", "I16", "I8", "I4", "U64", "U32", "U16", "U8", "BOOL"}
    | {"F8_E4M3", "F8_E5M2"}
)
"""Types of other writers that this version has no codec for; the sizes are not checked."""

_MAX_DIMENSIONS = 8


def present(subject: Subject) -> Iterator[Finding]:
    """Check that there is at least one tensor."""
    if not subject.has_tensors:
        yield Finding(
            "tensorsFile",
            "the file is not available, so the tensors were not checked",
            severity="warning",
        )
    elif not subject.manifest.tensors and not subject.broken_tensors:
        yield Finding("tensors", "the table is empty", "at least one tensor")


def shapes(subject: Subject) -> Iterator[Finding]:
    """Check that every dimension is positive and that there are not too many."""
    for name, tensor in subject.manifest.tensors.items():
        if any(size < 1 for size in tensor.shape) or len(tensor.shape) > _MAX_DIMENSIONS:
            yield Finding(
                tensor_field(name, "shape"),
                "not a valid shape",
                f"up to {_MAX_DIMENSIONS} positive dimensions",
                list(tensor.shape),
            )


def dtypes(subject: Subject) -> Iterator[Finding]:
    """Check that every storage type is known.

    A type of another writer, or an unknown type of a tensor that no op reads, is only a warning.
    """
    graph = None if subject.broken & {"architecture", "inference"} else subject.graph
    used = {use.name for use in graph.weights()} if graph else set()
    for name, tensor in subject.manifest.tensors.items():
        try:
            tensor.parsed_dtype()
        except FormatError as error:
            is_integer = tensor.source_transform is not None
            is_foreign = is_integer or tensor.dtype.upper() in FOREIGN_DTYPES
            yield Finding(
                tensor_field(name, "dtype"),
                "this version of rdrr cannot decode this dtype" if is_foreign else "unknown dtype",
                error.expected,
                error.found if is_integer else tensor.dtype,
                "warning" if is_foreign or (graph and name not in used) else "error",
            )


def layouts(subject: Subject) -> Iterator[Finding]:
    """Check that each layout is row, column or flat, and column only for matrices."""
    for name, tensor in _decodable(subject):
        try:
            tensor.geometry()
        except FormatError as error:
            yield Finding(
                tensor_field(name, "layout"), error.message, error.expected, tensor.layout
            )


def sizes(subject: Subject) -> Iterator[Finding]:
    """Check that each size is the one that follows from dtype, shape and layout.

    Where a `sourceTransform` is stated, it follows from the integers that are stored.
    """
    for name, tensor in subject.manifest.tensors.items():
        transform = tensor.source_transform
        stored = None if transform is None else transform.stored_size(tensor.shape)
        if transform is not None and stored not in (None, tensor.size):
            yield Finding(
                tensor_field(name, "size"),
                f"not the size of {transform.source_dtype} "
                f"{list(transform.storage_shape or tensor.shape)}, which sourceTransform states",
                stored,
                tensor.size,
            )
    for name, tensor in _decodable(subject):
        expected = _expected_size(tensor)
        if expected is not None and expected != tensor.size:
            layout = tensor.parsed_layout().value
            yield Finding(
                tensor_field(name, "size"),
                f"not the size of {tensor.dtype} {list(tensor.shape)} in layout {layout}",
                expected,
                tensor.size,
            )


def _decodable(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in subject.manifest.tensors.items():
        if any(size < 1 for size in tensor.shape):
            continue
        try:
            tensor.parsed_dtype()
        except FormatError:
            continue
        yield name, tensor


def _expected_size(tensor: Tensor) -> int | None:
    try:
        return tensor.geometry().size
    except FormatError:
        return None


def locations(subject: Subject) -> Iterator[Finding]:
    """Check that each tensor states where its bytes are: a shard and an offset, or spans."""
    for name, tensor in subject.manifest.tensors.items():
        if tensor.spans:
            continue
        for part, value in (("shard", tensor.shard), ("offset", tensor.offset)):
            if value is None:
                yield Finding(
                    tensor_field(name, part), "the field is missing", "shard and offset, or spans"
                )


def spans(subject: Subject) -> Iterator[Finding]:
    """Check that the sizes of a tensor's spans add up to its size."""
    for name, tensor in subject.manifest.tensors.items():
        if not tensor.spans:
            continue
        total = sum(span.size for span in tensor.spans)
        if total != tensor.size:
            yield Finding(
                tensor_field(name, "spans"),
                "the sizes of the spans do not add up to the size of the tensor",
                tensor.size,
                total,
            )


def bounds(subject: Subject) -> Iterator[Finding]:
    """Check that every byte span lies within its shard."""
    shards = subject.manifest.shards
    for _, field, index, offset, size in _byte_spans(subject):
        if not 0 <= index < len(shards):
            actual = f"shard {index}"
            yield Finding(field, "no such shard", f"0 to {len(shards) - 1}", actual)
        elif offset < 0 or offset + size > shards[index].content_size:
            yield Finding(
                field,
                f"the bytes are outside shard {index}",
                f"an end of at most {shards[index].content_size}",
                f"bytes {offset} to {offset + size}",
            )


def overlaps(subject: Subject) -> Iterator[Finding]:
    """Check that no byte belongs to two tensors."""
    ordered = sorted(
        (index, offset, offset + size, name, field)
        for name, field, index, offset, size in _byte_spans(subject)
        if size > 0
    )
    end, owner, shard = -1, "", -1
    for index, offset, stop, name, field in ordered:
        if index == shard and offset < end:
            yield Finding(
                field,
                "the tensor shares bytes with another one",
                f"an offset of at least {end}",
                f"{offset}, which is within {tensor_field(owner)}",
            )
        if index != shard or stop > end:
            end, owner, shard = stop, name, index


def _byte_spans(subject: Subject) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield name, field path, shard, offset and size of every byte span that is stated."""
    for name, tensor in subject.manifest.tensors.items():
        if tensor.spans:
            for position, span in enumerate(tensor.spans):
                field = tensor_field(name, f"spans[{position}]")
                yield name, field, span.shard_index, span.offset, span.size
        elif tensor.shard is not None and tensor.offset is not None:
            yield name, tensor_field(name), tensor.shard, tensor.offset, tensor.size


def original_shapes(subject: Subject) -> Iterator[Finding]:
    """Check that `originalShape` has as many elements as `shape`."""
    for name, tensor in subject.manifest.tensors.items():
        original = tensor.original_shape
        if original is not None and prod(original) != prod(tensor.shape):
            yield Finding(
                tensor_field(name, "originalShape"),
                "the number of elements differs from that of shape",
                list(tensor.shape),
                list(original),
            )


def transposed(subject: Subject) -> Iterator[Finding]:
    """Check that `weightsTransposed` holds: matmul weights are column-major, embeddings are not."""
    if not subject.manifest.weights_transposed:
        return
    wanted: Mapping[str, bool] = {"matmul": True, "expert": True, "embedding": False}
    for name, tensor in _decodable(subject):
        if len(tensor.shape) != 2 or tensor.role not in wanted:
            continue
        try:
            is_column = tensor.parsed_layout() is Layout.COLUMN
        except FormatError:
            continue
        if is_column != wanted[tensor.role]:
            yield Finding(
                tensor_field(name, "layout"),
                f"weightsTransposed is true and the role is {tensor.role}",
                "column" if wanted[tensor.role] else "row",
                tensor.layout,
            )


RULES = (
    Rule("tensor-list", present, needs=("tensors",)),
    Rule("tensor-shape", shapes),
    Rule("tensor-dtype", dtypes),
    Rule("tensor-layout", layouts),
    Rule("tensor-size", sizes),
    Rule("tensor-place", locations),
    Rule("tensor-spans", spans),
    Rule("tensor-bounds", bounds, needs=("shards",)),
    Rule("tensor-overlap", overlaps),
    Rule("original-shape", original_shapes),
    Rule("weights-transposed", transposed),
)
