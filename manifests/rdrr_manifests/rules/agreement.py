"""Rules that hold the typed blocks and the tensors against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rdrr_format.errors import ManifestError

from rdrr_manifests.faults import Severity, tensor_field
from rdrr_manifests.graph import Graph, WeightUse
from rdrr_manifests.rules.subject import Finding, Rule, Subject

_LISTED = 4
"""Names given in one message; the rest are counted."""


def graph_support(subject: Subject) -> Iterator[Finding]:
    """This version of rdrr has an op for everything that the blocks ask for."""
    outcome = subject.derivation
    if subject.has_tensors and isinstance(outcome, ManifestError):
        yield Finding(
            outcome.where or "",
            f"not runnable here: {outcome.message}",
            outcome.expected,
            outcome.found,
        )


def graph_weights(subject: Subject) -> Iterator[Finding]:
    """Every tensor that the graph reads is there.

    A part that some layers have and one lacks is a hole. A part that no layer has, in a package
    of another writer, means that the model is built otherwise: valid, but not runnable here.
    """
    if subject.graph is None or not subject.has_tensors:
        return
    missing = [use for use in subject.graph.weights() if use.name not in subject.names]
    foreign = [use for use in missing if _is_foreign(subject, use)]
    for use in missing:
        if use not in foreign:
            yield Finding(tensor_field(use.name), "missing", f"shape {list(use.shape)}")
    if foreign:
        yield Finding(
            "tensors",
            "not runnable here: the model is built of other tensors than these blocks call for",
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
    """What a layer's tensor is called inside its layer; the full name for other tensors."""
    return re.sub(rf"^{re.escape(subject.names.prefix)}layers\.\d+\.", "", name)


def graph_shapes(subject: Subject) -> Iterator[Finding]:
    """Every tensor that the graph reads has the shape that its op needs."""
    if subject.graph is None:
        return
    severity: Severity = "warning" if subject.inferred else "error"
    for use in subject.graph.weights():
        tensor = subject.manifest.tensors.get(use.name)
        if tensor is not None and tensor.shape != use.shape:
            yield Finding(
                tensor_field(use.name, "shape"),
                "not the shape that the architecture calls for",
                list(use.shape),
                list(tensor.shape),
                severity,
            )


def graph_unused(subject: Subject) -> Iterator[Finding]:
    """The graph reads every tensor of the layers, so that it is the whole model."""
    if subject.graph is None:
        return
    unused = unused_parts(subject)
    if unused:
        yield Finding(
            "tensors",
            "parts of layers that no op reads: this version of rdrr may not know all of the model",
            found=_listed(unused),
        )


def unused_parts(subject: Subject) -> list[str]:
    """Parts of layers that the graph does not read, sorted."""
    if not isinstance(subject.graph, Graph):
        return []
    used = {_part(subject, use.name) for use in subject.graph.weights()}
    # Frequencies of rope are derived from the blocks; some checkpoints carry them along.
    return sorted(
        part for part in subject.layer_parts if part not in used and "inv_freq" not in part
    )


def layer_count(subject: Subject) -> Iterator[Finding]:
    """The tensors have as many layers as `numLayers` says."""
    stated, found = subject.manifest.architecture.num_layers, subject.layers_present
    if subject.has_tensors and found and found != stated:
        yield Finding(
            "architecture.numLayers",
            "not the number of layers among the tensors",
            f"{found}, as the tensors have",
            stated,
            None if found < stated or subject.is_written_by_rdrr else "warning",
        )


_NORM_FLAGS = (
    ("postAttentionNorm", "post_attention_norm", "post_attention_layernorm.weight"),
    ("preFeedforwardNorm", "pre_feedforward_norm", "pre_feedforward_layernorm.weight"),
    ("postFeedforwardNorm", "post_feedforward_norm", "post_feedforward_layernorm.weight"),
)


def norm_flags(subject: Subject) -> Iterator[Finding]:
    """Each norm flag says whether the tensor of that name exists."""
    if subject.inferred or not subject.has_tensors:
        return
    norms = subject.manifest.inference.normalization
    for field, attribute, part in _NORM_FLAGS:
        exists, stated = part in subject.layer_parts, getattr(norms, attribute)
        if exists != stated:
            yield Finding(
                f"inference.normalization.{field}",
                f"the tensors {'have' if exists else 'lack'} {part}",
                exists,
                stated,
            )


def other_flags(subject: Subject) -> Iterator[Finding]:
    """The flags for q/k norms, biases and the tied head say what the tensors say."""
    if subject.inferred or not subject.has_tensors:
        return
    inference, parts = subject.manifest.inference, subject.layer_parts
    facts = (
        (
            "attention.queryKeyNorm",
            inference.attention.query_key_norm,
            "self_attn.q_norm.weight" in parts,
        ),
        (
            "attention.attentionBias",
            inference.attention.attention_bias,
            any(re.fullmatch(r"self_attn\.[qkvo]_proj\.bias", part) for part in parts),
        ),
        (
            "output.tieWordEmbeddings",
            inference.output.tie_word_embeddings,
            subject.names.head() is None,
        ),
    )
    for field, stated, exists in facts:
        if stated != exists:
            yield Finding(
                f"inference.{field}", "the tensors say otherwise and decide", exists, stated
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


_NEEDS = ("architecture", "inference", "tensors")
RULES = (
    Rule("graph-support", graph_support, "warning", _NEEDS),
    Rule("graph-weights", graph_weights, needs=_NEEDS),
    Rule("graph-shapes", graph_shapes, needs=_NEEDS),
    Rule("graph-unused", graph_unused, "warning", _NEEDS),
    Rule("layer-count", layer_count, needs=_NEEDS),
    Rule("norm-flags", norm_flags, needs=_NEEDS),
    Rule("tensor-flags", other_flags, "warning", _NEEDS),
)
