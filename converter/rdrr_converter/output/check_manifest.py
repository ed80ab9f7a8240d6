"""Validation of the planned manifest before anything is written, and notes on what can run it.

A configuration may contain values that no rule of an architecture checks, such as an eos token id
beyond the vocabulary or a context length of 10^30 tokens. Therefore the planned manifest is checked
with the rules for manifests that are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_format.errors import ConversionError
from rdrr_format.shards import shard_name
from rdrr_manifests.faults import of_severity
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import WeightKind
from rdrr_manifests.graph.padding import LANES, pad_widths
from rdrr_manifests.models import Manifest, Shard
from rdrr_manifests.reading import read_object
from rdrr_manifests.rules import examine
from rdrr_manifests.rules.tokenizer import examine_tokenizer

from rdrr_converter.plan import ConversionPlan

_PLACEHOLDER_HASH = "f" * 64


def check_manifest(draft: Manifest, plan: ConversionPlan, where: object) -> None:
    """Refuse a conversion whose package would be invalid.

    Args:
        draft: The manifest, still without shards.
        plan: The plan of the package.
        where: The configuration's file, for messages.

    Raises:
        ConversionError: The package would be invalid.
    """
    text = _with_shards(draft, plan).to_json().encode()
    data, _ = read_object(text, where)
    errors = of_severity(examine(data).faults, "error")
    if errors:
        first = errors[0]
        raise ConversionError(
            f"the package would not be valid: {first.field}: {first.message}",
            where=where,
            expected=first.expected,
            found=first.found,
            hint="correct the value in the configuration of the checkpoint",
        )


def check_tokenizer(draft: Manifest, content: bytes | None, where: object) -> tuple[str, ...]:
    """Refuse a conversion whose package would have an unusable tokenizer.

    Args:
        draft: The manifest, still without shards.
        content: Content of tokenizer.json, or None.
        where: The file, for messages.

    Returns:
        Notes with warnings about the tokenizer.

    Raises:
        ConversionError: The tokenizer is unusable.
    """
    findings = () if content is None else tuple(examine_tokenizer(content, draft))
    for finding in findings:
        if finding.severity != "warning":
            raise ConversionError(
                f"the package would not be valid: {finding.message}",
                where=where,
                expected=finding.expected,
                found=finding.found,
                hint="use the tokenizer.json that the model was published with, or remove the file",
            )
    return tuple(f"tokenizer.json: {finding.message}" for finding in findings)


def _with_shards(draft: Manifest, plan: ConversionPlan) -> Manifest:
    """Return the manifest with the planned shards, whose hashes are placeholders."""
    shards, offset = [], 0
    for index, size in enumerate(plan.shard_sizes):
        shards.append(
            Shard(
                index=index,
                filename=shard_name(index),
                size=size,
                hash=_PLACEHOLDER_HASH,
                offset=offset,
            )
        )
        offset += size
    return draft.model_copy(update={"shards": tuple(shards), "total_size": offset})


def backend_notes(graph: Graph, manifest: Manifest) -> tuple[str, ...]:
    """Return a note if the model has sizes that the backend `wgpu` cannot run.

    Args:
        graph: The model's graph.
        manifest: The planned manifest.
    """
    odd_size = next(_odd_sizes(pad_widths(graph).graph, manifest), None)
    if odd_size is None:
        return ()
    return (
        f"only the backend `cpu` can run this package: wgpu needs rows and heads whose length is a "
        f"multiple of {LANES}, and {odd_size}",
    )


def _odd_sizes(graph: Graph, manifest: Manifest) -> Iterator[str]:
    head_dim = manifest.architecture.head_dim
    if head_dim % LANES:
        yield f"the head dimension is {head_dim}"
    for use in graph.weights():
        is_matrix = use.kind is not WeightKind.VECTOR and len(use.shape) > 1
        if is_matrix and use.shape[-1] % LANES:
            yield f"a row of {use.name} has {use.shape[-1]} values"
