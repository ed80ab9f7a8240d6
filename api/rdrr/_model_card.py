"""The model card of a package: the text that the hub shows, made from the manifest.

The card claims nothing that the manifest does not say. The base model, which no manifest names, is
given by whoever pushes the package.
"""

from __future__ import annotations

from rdrr_format.dtypes import parse_dtype
from rdrr_format.html_tables import html_text
from rdrr_format.locations import HubLocation
from rdrr_manifests.models import Manifest
from rdrr_manifests.models.conversion_report import ConversionReport

from rdrr._report_plots import text_plots
from rdrr._report_view import measurement_lines, view
from rdrr._survey import survey
from rdrr._units import format_size

CARD_NAME = "README.md"
LIBRARY = "rdrr"
TAGS = ("rdrr", "webgpu")
_GENERATION = "text-generation", 'rdrr generate {} --prompt "Once upon a time"'
_EMBEDDING = "feature-extraction", 'rdrr embed {} "a first text" "a second text"'


def model_card(
    manifest: Manifest,
    location: HubLocation,
    *,
    base_model: str | None = None,
    report: ConversionReport | None = None,
) -> str:
    """Return the text of the card: metadata for the hub, then Markdown.

    Args:
        manifest: The manifest of the package.
        location: The repository that the package is pushed to.
        base_model: The repository that it was converted from, `org/name`.
        report: The conversion report, if the package has one.
    """
    from huggingface_hub import ModelCardData

    output = manifest.inference.output
    is_embedding = output.embedding_postprocessor is not None and output.classifier is None
    task, use = _EMBEDDING if is_embedding else _GENERATION
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag=task,
        base_model=base_model,
        base_model_relation="quantized" if base_model else None,
        tags=[*TAGS, manifest.quantization.lower()],
    )
    parts = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {html_text(manifest.model_id)}\n",
        _introduction(manifest, base_model),
        "## Use\n",
        f"```sh\n{use.format(location)}\n```\n",
        "## Weights\n",
        _weights(manifest, report),
    ]
    lines = measurement_lines(None if report is None else report.measured)
    if lines:
        parts += ["## Divergence from the source\n", *(f"- {line}" for line in lines), ""]
    if report is not None:
        parts += text_plots(view(report))
    return "\n".join(parts)


def _introduction(manifest: Manifest, base_model: str | None) -> str:
    weights = sum(group.weights for group in survey(manifest).by_dtype)
    origin = f", converted from [{base_model}](https://huggingface.co/{base_model})"
    shards = len(manifest.shards)
    return (
        f"A language model of {weights / 1e6:,.1f} million weights in the RDRR format"
        f"{origin if base_model else ''}: {format_size(manifest.total_size)} in "
        f"{shards} shard{'s' * (shards > 1)}, for any GPU through WebGPU.\n"
        f"The context length is {manifest.architecture.max_seq_len:,} tokens."
        f"{' It sees images.' if manifest.vision is not None else ''}\n"
    )


def _weights(manifest: Manifest, report: ConversionReport | None) -> str:
    """Return a table of the storage types, with the largest error of each if it is known."""
    errors: dict[str, float] = {}
    for tensor in report.tensors if report is not None else ():
        errors[tensor.dtype] = max(errors.get(tensor.dtype, 0.0), tensor.relative_rmse)
    head = ["stored as", "tensors", "weights", "size", "bits per weight"]
    rows: list[list[str]] = []
    for group in survey(manifest).by_dtype:
        counts = f"{group.tensors}", f"{group.weights:,}", format_size(group.bytes)
        rows.append([html_text(group.name), *counts, group.bits_text])
        if errors:
            error = errors.get(parse_dtype(group.name.partition(",")[0]).name, 0.0)
            rows[-1].append(f"{100 * error:.2f} %" if error else "none")
    if errors:
        head.append("worst relative error")
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
