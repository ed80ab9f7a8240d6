"""What llama.cpp and transformers make of exported checkpoints, beside each other.

    python benchmarks/check_gguf.py CHECKPOINT... --peer PATH [--text FILE] [--tokens 128]

Each checkpoint is converted to each of `--quantize` and exported twice: as safetensors in float32,
which transformers loads, and as a GGUF, which llama.cpp loads on the CPU. Both get the same tokens
of the text one after another; the logits are compared, and so are the ids that both tokenizers give
for every line of the text. `--peer` is the npm package `@node-llama-cpp/linux-x64` 3.22.1 or
`-vulkan`, as a tarball or unpacked. Quantized products of llama.cpp round activations to 8 bits, so
that only float32 compares the checkpoints alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_converter.recipes import RecipeName

F32 = npt.NDArray[np.float32]

TEXT = """And it came to pass in those days, that there went out a decree.
def main(argv):\n\treturn 12345 + x[0]  # don't
   leading and   many spaces, 12 345 6789 and I'LL we've
"""


def their_logits(library: Any, path: Path, ids: Sequence[int]) -> F32:
    """Logits of llama.cpp after each token, float32 [tokens, vocab]."""
    from peers.llama_cpp import PeerContext, PeerModel

    model = PeerModel(library, path, library.device("CPU"))
    context = PeerContext(
        model, context=len(ids) + 8, flash_attention=False, threads=1, exact_cache=True
    )
    rows = []
    for position, token in enumerate(ids):
        context.decode([token], position)
        rows.append(context.logits())
    context.close()
    model.close()
    return np.stack(rows)


def their_ids(library: Any, path: Path, lines: Sequence[str]) -> list[list[int]]:
    """Ids that llama.cpp's tokenizer gives, without special tokens."""
    from peers.llama_cpp import PeerModel

    model = PeerModel(library, path, library.device("CPU"))
    llama = library.llama
    kinds = (c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool)
    llama.llama_tokenize.restype, llama.llama_tokenize.argtypes = c.c_int32, kinds
    vocabulary = llama.llama_model_get_vocab(model.handle)
    found = []
    for line in lines:
        raw = line.encode()
        room = (c.c_int32 * (len(raw) + 16))()
        count = llama.llama_tokenize(vocabulary, raw, len(raw), room, len(room), False, False)
        found.append(list(room[:count]))
    model.close()
    return found


def our_logits(folder: Path, ids: Sequence[int]) -> F32:
    """Logits of transformers after each token, float32 [tokens, vocab]."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: F32 = model(torch.tensor([list(ids)])).logits[0].numpy()
    return logits


def check(
    library: Any, checkpoint: Path, quantize: RecipeName, text: str, tokens: int
) -> dict[str, Any]:
    """One row of the table."""
    from rdrr_converter.convert import convert
    from rdrr_converter.export import export
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory(prefix="rdrr-check-") as scratch:
        work = Path(scratch)
        convert(checkpoint, work / "package", quantize=quantize)
        export(work / "package", work / "hf", dtype="f32")
        result = export(work / "package", work / "m.gguf", to="gguf")
        tokenizer = Tokenizer.from_file(str(work / "package" / "tokenizer.json"))
        lines = [line for line in text.splitlines() if line][:200]
        ours = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        same = sum(
            mine == other
            for mine, other in zip(ours, their_ids(library, work / "m.gguf", lines), strict=True)
        )
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
        reference = our_logits(work / "hf", ids)
        found = their_logits(library, work / "m.gguf", ids)
    return {
        "checkpoint": checkpoint.name,
        "architecture": result.architecture,
        "quantize": quantize,
        "tokens": len(ids),
        "relative_error": float(np.abs(found - reference).max() / np.abs(reference).max()),
        "same_top": float((found.argmax(1) == reference.argmax(1)).mean()),
        "lines": len(lines),
        "same_ids": same,
        "written_as": sorted({one.dtype for one in result.tensors}),
        "notes": list(result.notes),
    }


def main() -> None:
    """Check every checkpoint in every type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--peer", type=Path, required=True, help="llama.cpp's libraries")
    parser.add_argument("--text", type=Path, help="text in UTF-8; a few lines by default")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--quantize", default="f32,f16,q8_0,q4_k_m", help="types, by commas")
    options = parser.parse_args()
    from peers.llama_cpp import LlamaCpp, unpacked

    text = options.text.read_text(encoding="utf-8") if options.text else TEXT
    with unpacked(options.peer) as folder:
        library = LlamaCpp(folder)
        print(f"llama.cpp {library.version}")
        rows = []
        for checkpoint in options.checkpoints:
            for quantize in options.quantize.split(","):
                row = check(library, checkpoint, quantize, text, options.tokens)
                rows.append(row)
                print(
                    f"{row['checkpoint']:>16} {quantize:>7}: relative error of logits "
                    f"{row['relative_error']:.2g}, same top token {100 * row['same_top']:.1f} %, "
                    f"same ids in {row['same_ids']} of {row['lines']} lines"
                )
    print(json.dumps({"version": library.version, "rows": rows}))


if __name__ == "__main__":
    main()
