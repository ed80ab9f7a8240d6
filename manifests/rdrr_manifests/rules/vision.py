"""Rules on `vision`: its sizes fit each other, the recipe of images, the text and the tensors."""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.vision import derive_vision
from rdrr_manifests.rules.subject import Finding, Rule, Subject


def vision_sizes(subject: Subject) -> Iterator[Finding]:
    """Check that the sizes of the tower fit each other."""
    vision = subject.manifest.vision
    if vision is None:
        return
    heads = vision.num_attention_heads
    if vision.hidden_size % (4 * heads):  # rope in two dimensions and kernels need fours
        expected = f"a multiple of 4 * numAttentionHeads = {4 * heads}"
        message = "the heads have no whole groups of four values"
        yield Finding("vision.hiddenSize", message, expected, vision.hidden_size)
    taps = vision.taps
    if any(layer >= vision.num_layers for layer in taps) or list(taps) != sorted(set(taps)):
        expected = f"layers from 0 to {vision.num_layers - 1}, each once, in order"
        yield Finding("vision.taps", "not a list of layers", expected, list(taps))


def vision_agreement(subject: Subject) -> Iterator[Finding]:
    """Check that the tower reads what the recipe makes, and makes what the text model reads."""
    vision, processor = subject.manifest.vision, subject.manifest.processor
    if vision is None:
        return
    hidden = subject.manifest.architecture.hidden_size
    if vision.output_size != hidden:
        message = "not the width of the text model's embeddings"
        yield Finding("vision.outputSize", message, hidden, vision.output_size)
    if len(vision.taps) > subject.manifest.architecture.num_layers:
        most = f"at most {subject.manifest.architecture.num_layers}"
        message = "there are more taps than layers of the text model"
        yield Finding("vision.taps", message, most, len(vision.taps))
    if processor is None:
        return
    inputs = 3 * processor.temporal_patch_size * processor.patch_size**2
    for field, expected, stated in (
        ("patchInputs", inputs, vision.patch_inputs),
        ("mergeSize", processor.merge_size, vision.merge_size),
    ):
        if stated != expected:
            yield Finding(f"vision.{field}", "the recipe of images differs", expected, stated)
    if vision.merge_size > 1 and processor.patch_order != "merged":
        message = "the patches of a token do not follow each other"
        yield Finding("processor.patchOrder", message, "merged", processor.patch_order)


def vision_tensors(subject: Subject) -> Iterator[Finding]:
    """Check that the package has the tensors of the tower, in the shapes that follow."""
    if subject.manifest.vision is None or not subject.has_tensors or _is_unsound(subject):
        return
    try:
        derive_vision(subject.manifest, [*subject.manifest.tensors, *subject.broken_tensors])
    except ManifestError as error:
        where = error.where or "vision"
        yield Finding(where, error.message, error.expected, error.found)


def _is_unsound(subject: Subject) -> bool:
    """Return whether the sizes are refused already, so that no graph follows from them."""
    return any(True for _ in vision_sizes(subject))


RULES = (
    Rule("vision-sizes", vision_sizes, needs=("vision",)),
    Rule("vision-agreement", vision_agreement, needs=("vision", "processor", "architecture")),
    Rule("vision-tensors", vision_tensors, needs=("vision", "tensors")),
)
