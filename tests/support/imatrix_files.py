"""Importance matrices in llama.cpp's formats: GGUF with gguf-py, the legacy format by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

Entry = tuple[np.ndarray, np.ndarray]
"""Sums of squares [experts, inputs] and counts [experts]."""


def write_gguf_imatrix(path: Path, entries: Mapping[str, Entry], kind: str = "imatrix") -> Path:
    writer = gguf.GGUFWriter(path, arch="", use_temp_file=False)
    writer.kv_data[0].pop(gguf.Keys.General.ARCHITECTURE, None)
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
        writer.add_tensor(f"{name}.counts", counts.astype(np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_legacy_imatrix(path: Path, entries: Mapping[str, Entry]) -> Path:
    """Write the legacy format: per entry a number of calls, and the means times that number."""
    out = struct.pack("<i", len(entries))
    for name, (sums, counts) in entries.items():
        calls = int(counts.max())
        values = (sums / counts[:, None] * calls).astype("<f4")
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", calls, values.size) + values.tobytes()
    path.write_bytes(out + struct.pack("<ii", 3, 8) + b"text.txt")
    return path
