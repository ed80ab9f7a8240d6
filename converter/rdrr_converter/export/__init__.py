"""Export of a package to a checkpoint: safetensors for transformers, or GGUF for llama.cpp.

find a configuration that reads back as the same model -> plan the type of each tensor
-> write the bytes a few rows at a time -> rename the complete file or folder
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
