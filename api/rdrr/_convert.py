"""Conversion, with the measurement that a limited size needs.

The converter chooses types by the sensitivity of the weights, which takes a run of the model; it
knows no runtime, so the run is here.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

from rdrr_converter.options import ConvertKeywords, ConvertOptions
from rdrr_format.misuse import explained
from rdrr_format.options import fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rdrr_converter.output.report import ConversionResult
    from rdrr_converter.progress import ProgressCallback

WINDOW, TOKENS = 256, 8192
"""Tokens of a window and of the whole measurement: twice as many changed no divergence by 1 %."""

_CARRIED = ("arch", "allow_unread", "lora", "follow_links", "workers")
"""Options that say how the checkpoint is read."""


@explained
def convert(
    source: str | Path,
    destination: str | Path,
    *,
    options: ConvertOptions | None = None,
    progress: ProgressCallback | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> ConversionResult:
    """Convert a checkpoint to an RDRR package.

    With `size` or `bits_per_weight`, and without an `imatrix`, the sensitivity of the weights is
    measured first, with torch on the CPU, which takes 4 bytes of memory a weight and more.

    Args:
        source: A Hugging Face directory (safetensors or PyTorch), one of its weight files, or a
            GGUF file, given by its path, its URL or `hf://org/name[@revision]`.
        destination: The folder to create, or its URL on an object store. The package appears
            there only when it is complete.
        options: Options of the package and of the work.
        progress: Called with each progress event, from the calling thread.
        keywords: Fields of `ConvertOptions`, given instead of `options`.

    Raises:
        UsageError: An option is invalid, or torch is not installed where it is needed.
        DeviceError: The device does not exist, or it fails.
        SourceError: The checkpoint cannot be read.
        ConversionError: The checkpoint cannot be converted with these options.
        StoreError: The destination exists, cannot be written, or, with `resume`, holds an
            unfinished conversion of another source or with other options.

    Finished shards of a conversion that is interrupted, also by an exception of `progress`, are
    kept, and the same call continues with them; a note of the exception says where they are.
    """
    from rdrr_converter.convert import convert as convert_checkpoint

    chosen = fill(ConvertOptions, options, keywords, parameter="options")
    is_limited = chosen.size is not None or chosen.bits_per_weight is not None
    if not is_limited or chosen.imatrix is not None:
        return convert_checkpoint(source, destination, options=chosen, progress=progress)
    with _measured(source, destination, chosen) as imatrix:
        chosen = replace(chosen, imatrix=imatrix, text=None)
        return convert_checkpoint(source, destination, options=chosen, progress=progress)


@contextmanager
def _measured(
    source: str | Path, destination: str | Path, options: ConvertOptions
) -> Iterator[Path]:
    """Measure the sensitivity of a checkpoint's weights, and yield the file for a `with` block."""
    from rdrr_converter.check_options import check_options
    from rdrr_converter.convert import convert as convert_checkpoint
    from rdrr_converter.output.target import Target
    from rdrr_format.extras import import_extra
    from rdrr_manifests.package import open_package

    from rdrr._texts import read_text
    from rdrr.importance import measure_importance

    # What would be refused after minutes of measuring is refused before.
    check_options(options)
    import_extra("torch", "torch", "measuring the sensitivity of weights")
    if not options.dry_run:
        Target(source, destination, overwrite=options.overwrite, resume=options.resume).check()
    text = calibration_text() if options.text is None else read_text(options.text)
    with TemporaryDirectory(prefix="rdrr-", ignore_cleanup_errors=True) as name:
        plain, matrix = Path(name) / "plain", Path(name) / "sensitivity.gguf"
        carried = {key: getattr(options, key) for key in _CARRIED}
        plain_options = ConvertOptions(
            quantize="f32", without_draft_head=True, without_vision=True, **carried
        )
        convert_checkpoint(source, plain, options=plain_options)
        longest = open_package(plain).manifest.architecture.max_seq_len
        window = min(WINDOW, longest)
        measure_importance(plain, text, matrix, window=window, limit=TOKENS, sensitivity=True)
        yield matrix


def calibration_text() -> str:
    """Return the text that comes with the package: prose, code, and twelve other languages."""
    return files("rdrr").joinpath("texts/calibration.txt").read_text(encoding="utf-8")
