"""Write a checkpoint of a given shape with random weights, as a hub would hold it.

    python benchmarks/synthesize.py SHAPE OUT

The weights are normal with a deviation of 0.02, bfloat16, the same on every machine for one seed,
whatever the number of threads. Pieces are sampled and written side by side; nothing large is held.
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
from shapes import SHAPES, Shape

DEVIATION = 0.02
PIECE = 1 << 22  # weights sampled at once by one thread
SHARD_BYTES = 4 << 30


@dataclass(frozen=True)
class TensorSpan:
    """A tensor and where its bytes go."""

    name: str
    shape: tuple[int, ...]
    offset: int
    index: int

    @property
    def size(self) -> int:
        """Bytes in bfloat16."""
        return 2 * prod(self.shape)


def shards(shape: Shape) -> Iterator[list[TensorSpan]]:
    """The tensors of each shard, in order, with offsets from the start of its data."""
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
    """The safetensors header: its length in 8 bytes, then JSON, padded to whole words."""
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
    """`count` weights of one piece of a tensor as bfloat16 bits."""
    rng = np.random.Generator(np.random.SFC64([seed, tensor.index, piece]))
    values = rng.standard_normal(count, dtype=np.float32)
    values *= DEVIATION
    values += centre
    bits = values.view(np.uint32)
    bits += 0x8000  # to nearest; the weights are far from overflow
    return (bits >> 16).astype(np.uint16)


def synthesize(shape: Shape, folder: Path, *, seed: int = 0, workers: int | None = None) -> int:
    """Write the checkpoint and return the bytes of its weights.

    Args:
        shape: Sizes of the model.
        folder: Directory to make.
        seed: Of the weights.
        workers: Threads; the processors' number when None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
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
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _write_shard(
    path: Path, tensors: list[TensorSpan], shape: Shape, seed: int, pool: ThreadPoolExecutor
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
            is_norm = len(tensor.shape) == 1
            centre = 1.0 if is_norm and not shape.norm_offset else 0.0
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
    """A byte-level tokenizer without merges: three special tokens and a token for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    # The byte-level alphabet shows bytes that do not print as characters from 256 on.
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
            "vocab": {token: index for index, token in enumerate([*special, *alphabet])},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main() -> None:
    """Write one checkpoint and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=tuple(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    size = synthesize(SHAPES[options.shape], options.out, seed=options.seed)
    seconds = round(time.perf_counter() - start, 2)
    print(json.dumps({"shape": options.shape, "bytes": size, "seconds": seconds}))


if __name__ == "__main__":
    main()
