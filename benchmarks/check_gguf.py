"""Check exported checkpoints: compare the logits and token ids of llama.cpp and transformers.

    python benchmarks/check_gguf.py CHECKPOINT... --peer PATH [--text FILE] [--tokens 128]
        [--quality gptq]

Each checkpoint is converted to each of `--quantize` and exported twice: as safetensors in float32,
which transformers loads, and as a GGUF file, which llama.cpp loads on the CPU. Both run the same
tokens of the text, and their logits are compared. The token ids of both tokenizers are compared for
the first 200 lines of the text. `--peer` is the npm package `@node-llama-cpp/linux-x64` 3.22.1 or
`-vulkan`, as a tarball or unpacked.

llama.cpp rounds the activations of quantized products to 8 bits, so with quantized weights these
logits also compare arithmetic. The last columns therefore run single tokens in the torch reference
on the blocks of the GGUF file, as usual and with the roundings of llama.cpp, and have the median
error of each: if the second one is not near 1e-6, the file and not the rounding is at fault. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rdrr_converter.recipes import RecipeName

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]

SINGLE_TOKENS = 16
"""Number of tokens of the text that are run as sequences of one token."""

TEXT = """And it came to pass in those days, that there went out a decree.
def main(argv):\n\treturn 12345 + x[0]  # don't
   leading and   many spaces, 12 345 6789 and I'LL we've
"""


def llama_cpp_logits(
    library: Any, path: Path, ids: Sequence[int], *, separately: bool = False
) -> F32:
    """Return llama.cpp's logits after each token, float32 [tokens, vocab].

    Args:
        library: The libraries of llama.cpp.
        path: The GGUF file.
        ids: The tokens of one sequence.
        separately: Whether each token is a sequence of its own instead.
    """
    from peers.llama_cpp import PeerContext, PeerModel

    model = PeerModel(library, path, library.device("CPU"))
    context = PeerContext(
        model, context=len(ids) + 8, flash_attention=False, threads=1, exact_cache=True
    )
    rows = []
    for position, token in enumerate(ids):
        if separately:
            context.prefill([token])
        else:
            context.decode([token], position)
        rows.append(context.logits())
    context.close()
    model.close()
    return np.stack(rows)


def llama_cpp_ids(library: Any, path: Path, lines: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each line by llama.cpp's tokenizer, without special tokens."""
    from peers.llama_cpp import PeerModel

    model = PeerModel(library, path, library.device("CPU"))
    llama = library.llama
    kinds = (c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool)
    llama.llama_tokenize.restype, llama.llama_tokenize.argtypes = c.c_int32, kinds
    vocabulary = llama.llama_model_get_vocab(model.handle)
    ids = []
    for line in lines:
        raw = line.encode()
        room = (c.c_int32 * (len(raw) + 16))()
        count = llama.llama_tokenize(vocabulary, raw, len(raw), room, len(room), False, False)
        ids.append(list(room[:count]))
    model.close()
    return ids


def transformers_logits(folder: Path, ids: Sequence[int]) -> F32:
    """Return the logits of transformers after each token, float32 [tokens, vocab]."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: F32 = model(torch.tensor([list(ids)])).logits[0].numpy()
    return logits


def single_token_errors(
    library: Any, path: Path, package: Package, ids: Sequence[int]
) -> tuple[float, float]:
    """Compare llama.cpp with the reference on sequences of one token each.

    Args:
        library: The libraries of llama.cpp.
        path: The GGUF file.
        package: The package made from this file, with the same blocks.
        ids: The tokens.

    Returns:
        The median error of the tokens, for the usual reference and for the one that rounds like
        llama.cpp.
    """
    from _llama_cpp_rounding import RoundedModel

    logits = llama_cpp_logits(library, path, ids, separately=True)
    models = [RoundedModel(package, rounds=rounds) for rounds in (False, True)]
    usual, rounded = (
        float(
            np.median(
                [
                    relative_error(row, model.logits([token])[0])
                    for row, token in zip(logits, ids, strict=True)
                ]
            )
        )
        for model in models
    )
    return usual, rounded


def relative_error(actual: F32, expected: F32) -> float:
    """Return max|actual - expected| / max|expected|."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def check(
    library: Any, checkpoint: Path, quantize: RecipeName, quality: str, text: str, tokens: int
) -> dict[str, Any]:
    """Convert and export one checkpoint, compare, and return its row of the table."""
    import rdrr
    from rdrr_converter.convert import convert
    from rdrr_converter.export import export
    from rdrr_manifests.package import open_package
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory(prefix="rdrr-check-") as scratch:
        work = Path(scratch)
        rdrr.convert(checkpoint, work / "package", quantize=quantize, quality=quality)
        export(work / "package", work / "hf", dtype="f32")
        result = export(work / "package", work / "m.gguf", to="gguf")
        tokenizer = Tokenizer.from_file(str(work / "package" / "tokenizer.json"))
        lines = [line for line in text.splitlines() if line][:200]
        ours = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
        same = sum(
            mine == other
            for mine, other in zip(
                ours, llama_cpp_ids(library, work / "m.gguf", lines), strict=True
            )
        )
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
        reference = transformers_logits(work / "hf", ids)
        exported = llama_cpp_logits(library, work / "m.gguf", ids)
        # Without a quantization, conversion copies the blocks of a GGUF file.
        kept = quantize if quantize in ("f32", "f16") else None
        convert(work / "m.gguf", work / "again", quantize=kept)
        again = open_package(work / "again")
        usual, rounded = single_token_errors(library, work / "m.gguf", again, ids[:SINGLE_TOKENS])
    return {
        "checkpoint": checkpoint.name,
        "architecture": result.architecture,
        "quantize": quantize,
        "tokens": len(ids),
        "relative_error": relative_error(exported, reference),
        "single_token_error": usual,
        "single_token_error_with_roundings": rounded,
        "same_top": float((exported.argmax(1) == reference.argmax(1)).mean()),
        "lines": len(lines),
        "same_ids": same,
        "written_as": sorted({tensor.dtype for tensor in result.tensors}),
        "notes": list(result.notes),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders of checkpoints")
    parser.add_argument(
        "--peer", type=Path, required=True, help="llama.cpp's libraries: npm tarball or folder"
    )
    parser.add_argument("--text", type=Path, help="text file in UTF-8; a few lines by default")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to run")
    parser.add_argument(
        "--quantize", default="f32,f16,q8_0,q4_k_m", help="quantizations, separated by commas"
    )
    parser.add_argument("--quality", default="ref", help="--quality of the conversions")
    options = parser.parse_args()
    from peers.llama_cpp import LlamaCpp, unpacked

    text = options.text.read_text(encoding="utf-8") if options.text else TEXT
    with unpacked(options.peer) as folder:
        library = LlamaCpp(folder)
        print(f"llama.cpp {library.version}")
        rows = []
        for checkpoint in options.checkpoints:
            for quantize in options.quantize.split(","):
                row = check(library, checkpoint, quantize, options.quality, text, options.tokens)
                rows.append(row)
                print(
                    f"{row['checkpoint']:>16} {quantize:>7}: relative error of logits "
                    f"{row['relative_error']:.2g}, same top token {100 * row['same_top']:.1f} %, "
                    f"same ids in {row['same_ids']} of {row['lines']} lines; single tokens: "
                    f"{row['single_token_error']:.2g}, with llama.cpp's roundings "
                    f"{row['single_token_error_with_roundings']:.2g}"
                )
    print(json.dumps({"version": library.version, "rows": rows}))


if __name__ == "__main__":
    main()
