"""Conversion, with what takes a run of the model: sensitivities, and the divergence of the result.

The converter knows no runtime, so the runs are here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Unpack

from rdrr_converter.options import ConvertKeywords, ConvertOptions
from rdrr_format.errors import UsageError
from rdrr_format.extras import import_extra
from rdrr_format.misuse import explained
from rdrr_format.options import fill

from rdrr._texts import read_text

if TYPE_CHECKING:
    from rdrr_converter.output.report import ConversionResult
    from rdrr_converter.plan import EncodedTensors
    from rdrr_converter.progress import ProgressCallback

WINDOW, TOKENS = 256, 8192
"""Tokens of a window and of the whole measurement: twice as many changed no divergence by 1 %."""

_CARRIED = ("arch", "allow_unread", "lora", "follow_links", "workers")
"""Options that say how the checkpoint is read."""

_QUALITY = ("quality", "imatrix", "size", "bits_per_weight", "text", "plan", "tensor_types")
"""Options without which a package has the usual mix."""


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
    measured first, with torch on the CPU or, with `device` cuda, there, which takes 4 bytes of
    memory a weight and more. With `measure`, the package is compared with its source at the end,
    on the same device.

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
        DeviceError: The device does not exist, it fails, or it has too little memory.
        SourceError: The checkpoint cannot be read.
        ConversionError: The checkpoint cannot be converted with these options.
        StoreError: The destination exists, cannot be written, or, with `resume`, holds an
            unfinished conversion of another source or with other options.

    Finished shards of a conversion that is interrupted, also by an exception of `progress`, are
    kept, and the same call continues with them; a note of the exception says where they are.
    """
    from rdrr_converter.convert import convert as convert_checkpoint
    from rdrr_converter.devices.torch_device import memory_errors

    chosen = fill(ConvertOptions, options, keywords, parameter="options")
    if not (_needs_sensitivity(chosen) or chosen.methods or chosen.measure is not None):
        return convert_checkpoint(source, destination, options=chosen, progress=progress)
    _check(source, destination, chosen)
    text = calibration_text() if chosen.text is None else read_text(chosen.text)
    held_out = None if chosen.measure is None else _held_out(chosen.measure, text)
    what = f"a conversion with `device` {_torch_device(chosen)}"
    hint = "`device` cpu, or another GPU; `quality` gptq has the weights of one op in memory"
    with (
        TemporaryDirectory(prefix="rdrr-", ignore_cleanup_errors=True) as name,
        memory_errors(what, hint),
    ):
        return _Work(source, chosen, text, Path(name), progress).convert(destination, held_out)


def _needs_sensitivity(options: ConvertOptions) -> bool:
    is_limited = options.size is not None or options.bits_per_weight is not None
    return is_limited and options.imatrix is None


@dataclass(frozen=True)
class _Work:
    """A conversion that runs the model.

    Attributes:
        source: The checkpoint.
        options: What the user asks for.
        text: Text to calibrate on.
        folder: Folder for the source in F32 and for other packages of the time of the conversion.
        progress: Called with each progress event of the package itself.
    """

    source: str | Path
    options: ConvertOptions
    text: str
    folder: Path
    progress: ProgressCallback | None

    def convert(self, destination: str | Path, held_out: str | None) -> ConversionResult:
        """Convert, and measure the package on a text that is held out, if there is one."""
        from rdrr_converter.convert import convert as convert_checkpoint

        from rdrr._measurement import judge_of, write_measurement
        from rdrr._refining import check_methods

        self._check_plan()
        carried = {key: getattr(self.options, key) for key in _CARRIED}
        plain = ConvertOptions(
            quantize="f32", without_draft_head=True, without_vision=True, **carried
        )
        convert_checkpoint(self.source, self._plain, options=plain)
        # A model that predicts no text is refused before minutes of measuring and encoding.
        device = _torch_device(self.options)
        judge = None if held_out is None else judge_of(self._plain, held_out, device)
        check_methods(self._plain, self.options.methods)
        settled = replace(self.options, measure=None)
        if _needs_sensitivity(settled):
            text = settled.text if settled.methods else None
            settled = replace(settled, imatrix=self._sensitivity(), text=text)
        encoded = self._refined(settled) if settled.methods else None
        result = convert_checkpoint(
            self.source, destination, options=settled, progress=self.progress, encoded=encoded
        )
        if judge is None:
            return result
        usual = _usual(self.source, self.folder / "usual", self.options)
        measured = judge.measure(result.destination, None if usual is None else usual.destination)
        write_measurement(result.destination, measured)
        return replace(result, measured=measured)

    def _check_plan(self) -> None:
        """Refuse what the model cannot be stored as before minutes of measuring."""
        from rdrr_converter.convert import convert as convert_checkpoint

        without_runs = replace(
            self.options, quality=self.options.search, text=None, measure=None, device="cpu"
        )
        # The types are chosen later, by what is measured.
        options = replace(without_runs, size=None, bits_per_weight=None, dry_run=True)
        convert_checkpoint(self.source, self.folder / "planned", options=options)

    @property
    def _plain(self) -> Path:
        return self.folder / "plain"

    def _sensitivity(self) -> Path:
        """Measure the sensitivity of the weights, and return the file that states it."""
        from rdrr_manifests.package import open_package

        from rdrr.importance import measure_importance

        matrix = self.folder / "sensitivity.gguf"
        window = min(WINDOW, open_package(self._plain).manifest.architecture.max_seq_len)
        measure_importance(
            self._plain,
            self.text,
            matrix,
            window=window,
            limit=TOKENS,
            sensitivity=True,
            device=_torch_device(self.options),
        )
        return matrix

    def _refined(self, options: ConvertOptions) -> EncodedTensors:
        """Let the methods of `quality` choose blocks; none in a dry run, which writes no block."""
        from rdrr_converter.convert import convert as convert_checkpoint
        from rdrr_converter.plan import EncodedTensors

        from rdrr._refining import Draft, refine

        if options.dry_run:
            return EncodedTensors(self.folder)
        draft = Draft(
            self._plain,
            self.folder / "unrefined",
            self.folder / "encoded",
            None if options.text is None else self.text,
            options.search,
            _torch_device(options),
        )
        unrefined = replace(
            options, quality=options.search, text=None, compress=None, overwrite=False, resume=False
        )
        convert_checkpoint(self.source, draft.unrefined, options=unrefined)
        return refine(draft, options.methods)


def _torch_device(options: ConvertOptions) -> str:
    """Return the device of torch that runs the model."""
    return "cuda" if options.device == "cuda" else "cpu"


def _check(source: str | Path, destination: str | Path, options: ConvertOptions) -> None:
    """Refuse before minutes of measuring what would be refused after them."""
    from rdrr_converter.check_options import check_options
    from rdrr_converter.devices.torch_device import check_torch_device
    from rdrr_converter.output.target import Target

    check_options(options)
    import_extra("torch", "torch", "measuring a model")
    check_torch_device(_torch_device(options))
    if not options.dry_run:
        Target(source, destination, overwrite=options.overwrite, resume=options.resume).check()
    elif options.measure is not None:
        raise UsageError(
            "a dry run writes no package that `measure` could compare with its source",
            expected="`measure` or `dry_run`",
            found="both",
        )


def _held_out(path: str | Path, text: str) -> str:
    """Return the text to measure on.

    Raises:
        UsageError: The types of the weights would be chosen on the same text.
    """
    from rdrr._measurement import BUNDLED, bundled_text

    held_out = bundled_text() if str(path) == BUNDLED else read_text(path)
    if held_out in (text, calibration_text()):
        raise UsageError(
            "a package is not judged on the text on which it was calibrated",
            where=path,
            hint="a text for `measure` that differs from that of `text`",
        )
    return held_out


def _usual(
    source: str | Path, destination: Path, options: ConvertOptions
) -> ConversionResult | None:
    """Convert without the options for quality and size; None if none of them is given."""
    from rdrr_converter.convert import convert as convert_checkpoint

    defaults = ConvertOptions()
    plain = {key: getattr(defaults, key) for key in (*_QUALITY, "measure", "overwrite", "resume")}
    if all(getattr(options, key) == plain[key] for key in _QUALITY):
        return None
    return convert_checkpoint(source, destination, options=replace(options, **plain))


def calibration_text() -> str:
    """Return the text that comes with the package: prose, code, and twelve other languages."""
    return files("rdrr").joinpath("texts/calibration.txt").read_text(encoding="utf-8")
