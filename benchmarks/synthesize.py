"""Write a checkpoint of a given shape with random weights, in the form that model hubs publish.

    python benchmarks/synthesize.py SHAPE OUT

The weights are bfloat16 and normally distributed with a standard deviation of 0.02; norm weights
have a mean of 1 where the model multiplies by them directly. The same seed gives the same bytes on
every machine and with any number of threads. Threads sample and write pieces of at most 2^22
weights, so memory does not grow with the model.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _shape_families import ConfiguredShape
from configured_shapes import ALL_SHAPES
from shapes import Shape

DEVIATION = 0.02
PIECE = 1 << 22  # weights that a thread samples at a time
SHARD_BYTES = 4 << 30  # largest size of a shard with several tensors


@dataclass(frozen=True)
class TensorSpan:
    """A tensor and the byte span of its data in a shard.

    Attributes:
        name: Name of the tensor.
        shape: Shape of the tensor.
        offset: First byte, counted from the start of the shard's data.
        index: Position of the tensor in the model; it seeds the weights.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    index: int

    @property
    def size(self) -> int:
        """Return the bytes of the tensor in bfloat16."""
        return 2 * prod(self.shape)


def shards(shape: Shape | ConfiguredShape) -> Iterator[list[TensorSpan]]:
    """Yield the tensors of each shard, in the order of the model."""
    shard: list[TensorSpan] = []
    offset = 0
    for index, (name, dims) in enumerate(shape.tensors()):
        if shard and offset + 2 * prod(dims) > SHARD_BYTES:
            yield shard
            shard, offset = [], 0
        shard.append(TensorSpan(name, dims, offset, index))
        offset += shard[-1].size
    yield shard


def header(tensors: list[TensorSpan]) -> bytes:
    """Return the safetensors header: its length in 8 bytes, then JSON padded to a multiple of 8."""
    entries = {
        tensor.name: {
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": [tensor.offset, tensor.offset + tensor.size],
        }
        for tensor in tensors
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def sample_weights(
    tensor: TensorSpan, piece: int, count: int, centre: float, seed: int
) -> npt.NDArray[np.uint16]:
    """Sample the first `count` weights of one piece of a tensor; return their bfloat16 bits.

    Args:
        tensor: The tensor.
        piece: Index of the piece in the tensor.
        count: Number of weights.
        centre: Mean of the weights.
        seed: Seed of the checkpoint.
    """
    rng = np.random.Generator(np.random.SFC64([seed, tensor.index, piece]))
    values = rng.standard_normal(count, dtype=np.float32)
    values *= DEVIATION
    values += centre
    bits = values.view(np.uint32)
    bits += 0x8000  # rounds to nearest; the weights are far from overflow
    return (bits >> 16).astype(np.uint16)


def synthesize(
    shape: Shape | ConfiguredShape, folder: Path, *, seed: int = 0, workers: int | None = None
) -> int:
    """Write the checkpoint and return the bytes of its weights.

    Args:
        shape: Sizes of the model.
        folder: Folder to create.
        seed: Random seed of the weights.
        workers: Number of threads; the number of CPU cores when None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1), encoding="utf-8")
    _write_tokenizer(folder)
    parts = list(shards(shape))
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for name, tensors in zip(names, parts, strict=True):
            _write_shard(folder / name, tensors, shape, seed, pool)
    total = sum(tensor.size for part in parts for tensor in part)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {
            tensor.name: name for name, part in zip(names, parts, strict=True) for tensor in part
        },
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def _write_shard(
    path: Path,
    tensors: list[TensorSpan],
    shape: Shape | ConfiguredShape,
    seed: int,
    pool: ThreadPoolExecutor,
) -> None:
    head = header(tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + sum(tensor.size for tensor in tensors))
        file.flush()

        def write(work: tuple[TensorSpan, int]) -> None:
            tensor, piece = work
            first = piece * PIECE
            count = min(PIECE, prod(tensor.shape) - first)
            centre = shape.centre(tensor.name, tensor.shape)
            data = sample_weights(tensor, piece, count, centre, seed)
            os.pwrite(file.fileno(), data.data, len(head) + tensor.offset + 2 * first)

        pieces = [
            (tensor, piece)
            for tensor in tensors
            for piece in range(-(-prod(tensor.shape) // PIECE))
        ]
        for _ in pool.map(write, pieces):
            pass


def _write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer: three special tokens, one per byte and one merged from two.

    llama.cpp refuses a byte-level tokenizer without merges.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    # The byte-level alphabet maps bytes that are not printable to characters from 256 on.
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    special = ["<pad>", "<s>", "</s>"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(special)
        ],
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate([*special, *alphabet, "!!"])},
            "merges": ["! !"],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def main() -> None:
    """Run the command line; print the bytes of the weights and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=tuple(ALL_SHAPES))
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the weights")
    options = parser.parse_args()
    start = time.perf_counter()
    size = synthesize(ALL_SHAPES[options.shape], options.out, seed=options.seed)
    seconds = round(time.perf_counter() - start, 2)
    print(json.dumps({"shape": options.shape, "bytes": size, "seconds": seconds}))


if __name__ == "__main__":
    main()
