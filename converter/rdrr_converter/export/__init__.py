"""From a package back to a checkpoint: safetensors for transformers, GGUF for llama.cpp.

plan: which type each tensor gets -> a configuration that reads back as the same model
-> bytes, a few rows at a time -> the file or folder appears under its name
"""

from __future__ import annotations

from rdrr_converter.export._export import DTYPES, KINDS, ExportDtype, ExportKind, export
from rdrr_converter.export._result import ExportedTensor, ExportResult

__all__ = [
    "DTYPES",
    "KINDS",
    "ExportDtype",
    "ExportKind",
    "ExportResult",
    "ExportedTensor",
    "export",
]
