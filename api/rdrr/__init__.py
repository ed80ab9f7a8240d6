"""The public Python API: convert checkpoints to RDRR packages, validate them, and run them.

    import rdrr

    rdrr.convert("checkpoint", "package", transpose_weights=True, fuse_gate_up=True)
    report = rdrr.validate("package")
    with rdrr.load("package") as model:
        for piece in model.generate("Once upon a time"):
            print(piece, end="", flush=True)

Each name is imported when it is first used, so `import rdrr` itself takes almost no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rdrr_format.version import __version__

if TYPE_CHECKING:
    from rdrr_converter.export import ExportResult, export
    from rdrr_converter.options import ConvertOptions
    from rdrr_converter.output.report import ConversionResult
    from rdrr_converter.progress import ProgressEvent
    from rdrr_format.errors import (
        ConversionError,
        DeviceError,
        FormatError,
        GenerationError,
        ManifestError,
        RdrrError,
        ShardError,
        SourceError,
        StoreError,
        UsageError,
    )
    from rdrr_manifests.faults import Fault, ValidationReport
    from rdrr_manifests.models import Manifest
    from rdrr_manifests.package import Package, open_package
    from rdrr_manifests.validation import validate
    from rdrr_runtime.decode.speculative import Speculative
    from rdrr_runtime.decode.wedlm import Wedlm
    from rdrr_runtime.sampling.params import SamplingParams

    from rdrr._async_generation import AsyncGeneration
    from rdrr._convert import convert
    from rdrr._generation import Completion, Generation
    from rdrr._load import load
    from rdrr._load_options import LoadOptions
    from rdrr._model import Model
    from rdrr._program import ExportedProgram, export_program, play
    from rdrr._push import Pushed, push
    from rdrr._ranking import RankPrompt
    from rdrr._session import Session
    from rdrr._web import WebFiles, web
    from rdrr._weights import TensorSlice, Weights
    from rdrr._weights import open_weights as open

_ERRORS = (
    "ConversionError",
    "DeviceError",
    "FormatError",
    "GenerationError",
    "ManifestError",
    "RdrrError",
    "ShardError",
    "SourceError",
    "StoreError",
    "UsageError",
)
# Module of each public name, and its name there where that is another one.
_HOMES = {
    "AsyncGeneration": "rdrr._async_generation",
    "ConversionResult": "rdrr_converter.output.report",
    "ConvertOptions": "rdrr_converter.options",
    "ExportResult": "rdrr_converter.export",
    "ExportedProgram": "rdrr._program",
    "Fault": "rdrr_manifests.faults",
    "Completion": "rdrr._generation",
    "Generation": "rdrr._generation",
    "LoadOptions": "rdrr._load_options",
    "Manifest": "rdrr_manifests.models",
    "SamplingParams": "rdrr_runtime.sampling.params",
    "Session": "rdrr._session",
    "Model": "rdrr._model",
    "Package": "rdrr_manifests.package",
    "ProgressEvent": "rdrr_converter.progress",
    "Pushed": "rdrr._push",
    "RankPrompt": "rdrr._ranking",
    "ValidationReport": "rdrr_manifests.faults",
    "Speculative": "rdrr_runtime.decode.speculative",
    "TensorSlice": "rdrr._weights",
    "WebFiles": "rdrr._web",
    "Wedlm": "rdrr_runtime.decode.wedlm",
    "Weights": "rdrr._weights",
    "convert": "rdrr._convert",
    "export": "rdrr_converter.export",
    "export_program": "rdrr._program",
    "load": "rdrr._load",
    "open": "rdrr._weights:open_weights",
    "open_package": "rdrr_manifests.package",
    "play": "rdrr._program",
    "push": "rdrr._push",
    "validate": "rdrr_manifests.validation",
    "web": "rdrr._web",
    **dict.fromkeys(_ERRORS, "rdrr_format.errors"),
}

__all__ = [
    "AsyncGeneration",
    "Completion",
    "ConversionError",
    "ConversionResult",
    "ConvertOptions",
    "DeviceError",
    "ExportResult",
    "ExportedProgram",
    "Fault",
    "FormatError",
    "Generation",
    "GenerationError",
    "LoadOptions",
    "Manifest",
    "ManifestError",
    "Model",
    "Package",
    "ProgressEvent",
    "Pushed",
    "RankPrompt",
    "RdrrError",
    "SamplingParams",
    "Session",
    "ShardError",
    "SourceError",
    "Speculative",
    "StoreError",
    "TensorSlice",
    "UsageError",
    "ValidationReport",
    "WebFiles",
    "Wedlm",
    "Weights",
    "__version__",
    "convert",
    "export",
    "export_program",
    "load",
    "open",
    "open_package",
    "play",
    "push",
    "validate",
    "web",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rdrr' has no attribute {name!r}")
    from importlib import import_module

    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
