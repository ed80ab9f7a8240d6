"""Rules on the graph that follows from the typed blocks: it reads the tensors that exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from rdrr_format.errors import FormatError, ManifestError

from rdrr_manifests.faults import Severity, tensor_field
from rdrr_manifests.graph import Graph, WeightUse
from rdrr_manifests.graph.names import HEAD_NORMS
from rdrr_manifests.models.tensors import Role
from rdrr_manifests.rules.subject import Finding, Rule, Subject

_ROLES = frozenset(get_args(Role)) - {"other"}

_LISTED = 4
"""Most names that one message lists; further names are only counted."""


def graph_support(subject: Subject) -> Iterator[Finding]:
    """Check that this version of rdrr has an op for everything that the blocks state."""
    outcome = subject.derivation
    if not subject.has_tensors or isinstance(outcome, Graph):
        return
    for fault in outcome.faults:
        yield Finding(
            fault.field, f"not runnable here: {fault.message}", fault.expected, fault.found
        )
    if not outcome.faults:
        yield Finding(
            outcome.where or "",
            f"not runnable here: {outcome.message}",
            outcome.expected,
            outcome.found,
        )


def graph_types(subject: Subject) -> Iterator[Finding]:
    """Check that every tensor that the graph reads is stored in a type that can be decoded.

    Without a graph, these are the tensors that have one of the roles that rdrr writes.
    """
    used = None if subject.graph is None else {use.name for use in subject.graph.weights()}
    counts: Counter[str] = Counter()
    for name, tensor in subject.manifest.tensors.items():
        if not (tensor.role in _ROLES if used is None else name in used):
            continue
        try:
            tensor.parsed_dtype()
        except FormatError as error:
            counts[error.found or tensor.dtype] += 1
    for dtype, count in counts.items():
        yield Finding(
            "tensors",
            f"not runnable here: {count} tensor{'s' * (count > 1)} of the model cannot be decoded",
            found=dtype,
        )


def graph_weights(subject: Subject) -> Iterator[Finding]:
    """Check that every tensor that the graph reads exists.

    A tensor that is missing in one layer and exists in others is an error. A tensor that no layer
    has, in a package of another writer, means that the model is built differently: the package is
    valid, but this version of rdrr cannot run it.
    """
    if subject.graph is None or not subject.has_tensors:
        return
    missing = [use for use in subject.graph.weights() if use.name not in subject.names]
    foreign = [use for use in missing if _is_foreign(subject, use)]
    for use in missing:
        if use not in foreign:
            yield Finding(
                tensor_field(use.name), "the tensor is missing", f"shape {list(use.shape)}"
            )
    if foreign:
        yield Finding(
            "tensors",
            "not runnable here: the model lacks tensors that its blocks need",
            _listed([use.name for use in foreign]),
            severity="warning",
        )


def _is_foreign(subject: Subject, use: WeightUse) -> bool:
    if subject.is_written_by_rdrr:
        return False
    if subject.inferred:
        return True
    has_other_parts = "self_attn.q_proj.weight" not in subject.layer_parts or bool(
        unused_parts(subject)
    )
    return has_other_parts and not subject.layer_parts.get(_part(subject, use.name))


def _part(subject: Subject, name: str) -> str:
    """Return a tensor's name within its layer, or its full name if it belongs to no layer."""
    return re.sub(rf"^{re.escape(subject.names.prefix)}layers\.\d+\.", "", name)


def graph_shapes(subject: Subject) -> Iterator[Finding]:
    """Check that every tensor that the graph reads has the shape that its op needs."""
    if subject.graph is None:
        return
    severity: Severity = "warning" if subject.inferred else "error"
    for use in subject.graph.weights():
        tensor = subject.manifest.tensors.get(use.name)
        if tensor is not None and tensor.shape != use.shape:
            yield Finding(
                tensor_field(use.name, "shape"),
                "the shape does not fit the architecture",
                list(use.shape),
                list(tensor.shape),
                severity,
            )


def graph_mtp(subject: Subject) -> Iterator[Finding]:
    """Check that a draft head, if there is one, is complete; the model also runs without it."""
    error = subject.mtp
    if isinstance(error, ManifestError):
        where = error.where or "tensors"
        yield Finding(where, error.message, error.expected, error.found)


def graph_unused(subject: Subject) -> Iterator[Finding]:
    """Check that the graph reads every tensor of the layers, so that it is the whole model."""
    if subject.graph is None:
        return
    unused = unused_parts(subject)
    if unused:
        yield Finding(
            "tensors",
            "no op reads these parts of layers: this version of rdrr may not know the whole model",
            found=_listed(unused),
        )


def unused_parts(subject: Subject) -> list[str]:
    """Return the parts of layers that the graph does not read, sorted."""
    if not isinstance(subject.graph, Graph):
        return []
    used = {_part(subject, use.name) for use in subject.graph.weights()}
    # Some checkpoints store the rope frequencies, which the graph derives from the blocks.
    return sorted(
        part for part in subject.layer_parts if part not in used and "inv_freq" not in part
    )


def layer_count(subject: Subject) -> Iterator[Finding]:
    """Check that `numLayers` is the number of layers among the tensors."""
    stated, present = subject.manifest.architecture.num_layers, subject.layers_present
    if subject.has_tensors and present and present != stated:
        yield Finding(
            "architecture.numLayers",
            "the tensors have another number of layers",
            f"{present}, the number of layers among the tensors",
            stated,
            None if present < stated or subject.is_written_by_rdrr else "warning",
        )


_NORM_FLAGS = (
    ("postAttentionNorm", "post_attention_norm", "post_attention_layernorm.weight"),
    ("preFeedforwardNorm", "pre_feedforward_norm", "pre_feedforward_layernorm.weight"),
    ("postFeedforwardNorm", "post_feedforward_norm", "post_feedforward_layernorm.weight"),
)


def norm_flags(subject: Subject) -> Iterator[Finding]:
    """Check that each norm flag states whether the tensor of that name exists."""
    if subject.inferred or not subject.has_tensors:
        return
    norms = subject.manifest.inference.normalization
    for field, attribute, part in _NORM_FLAGS:
        exists, stated = part in subject.layer_parts, getattr(norms, attribute)
        if exists != stated:
            yield Finding(
                f"inference.normalization.{field}",
                f"the layers {'have' if exists else 'do not have'} {part}",
                exists,
                stated,
            )


def other_flags(subject: Subject) -> Iterator[Finding]:
    """Check that the flags for q/k norms, biases and the tied head agree with the tensors."""
    if subject.inferred or not subject.has_tensors:
        return
    inference, parts = subject.manifest.inference, subject.layer_parts
    facts = (
        (
            "attention.queryKeyNorm",
            inference.attention.query_key_norm,
            any(f"self_attn.{part}.weight" in parts for part in HEAD_NORMS["q"]),
        ),
        (
            "attention.attentionBias",
            inference.attention.attention_bias,
            any(re.fullmatch(r"self_attn\.[qkvo]_proj\.bias", part) for part in parts),
        ),
        (
            "output.tieWordEmbeddings",
            inference.output.tie_word_embeddings,
            _is_tied(subject),
        ),
    )
    for field, stated, exists in facts:
        if stated != exists:
            yield Finding(
                f"inference.{field}",
                "the tensors contradict the flag and take precedence",
                exists,
                stated,
            )


def _is_tied(subject: Subject) -> bool:
    """Return whether the head is the embedding, which embedding models without a head state."""
    manifest = subject.manifest
    if manifest.model_type == "embedding" and subject.names.head() is None:
        return manifest.inference.output.tie_word_embeddings
    return subject.names.head() is None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


_NEEDS = ("architecture", "inference", "tensors")
RULES = (
    Rule("graph-support", graph_support, "warning", _NEEDS),
    Rule("graph-types", graph_types, "warning", _NEEDS),
    Rule("graph-weights", graph_weights, needs=_NEEDS),
    Rule("graph-shapes", graph_shapes, needs=_NEEDS),
    Rule("graph-unused", graph_unused, "warning", _NEEDS),
    Rule("graph-mtp", graph_mtp, "warning", _NEEDS),
    Rule("layer-count", layer_count, needs=_NEEDS),
    Rule("norm-flags", norm_flags, needs=_NEEDS),
    Rule("tensor-flags", other_flags, "warning", _NEEDS),
)
