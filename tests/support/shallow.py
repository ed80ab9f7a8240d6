"""The bundled checkpoint with fewer layers, for tests that need its texts but not their sense."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from support.commands import EXAMPLE
from support.safetensor_files import write_raw


def save_shallow(folder: Path, layers: int = 1) -> Path:
    """Write a checkpoint of the first layers of the bundled one, and return its folder."""
    shutil.copytree(EXAMPLE, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": layers}), encoding="utf-8"
    )
    raw = (EXAMPLE / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header, content = {}, b""
    for name, entry in json.loads(raw[8:begin]).items():
        layer = re.search(r"layers\.(\d+)", name)
        if name == "__metadata__" or (layer and int(layer[1]) >= layers):
            continue
        start, end = entry["data_offsets"]
        offsets = [len(content), len(content) + end - start]
        header[name] = entry | {"data_offsets": offsets}
        content += raw[begin + start : begin + end]
    write_raw(folder / "model.safetensors", header, content)
    return folder
