"""Cases of files with weights: safetensors, GGUF, compressed shards, importance matrices."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from fuzz import gguf_files, json_edits
from fuzz.byte_edits import NUMBERS, sometimes_damaged
from fuzz.json_edits import CONTROL
from hypothesis import strategies as st
from rdrr_format.dtypes import DTYPES
from rdrr_format.encoding import encode_tensor
from rdrr_format.frame_writer import compress_frame
from rdrr_format.seek_table import encode_seek_table
from support.manifests import SHARD_SIZE, valid_manifest

# safetensors ------------------------------------------------------------------------------------

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
}
TENSORS: Mapping[str, tuple[str, int, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("BF16", 2, (4, 8)),
    "model.norm.weight": ("F32", 4, (8,)),
    "half.weight": ("F16", 2, (2, 8)),
    "empty.weight": ("BF16", 2, (0, 3)),
}
"""Dtype, bytes per element and shape of tensors."""


def _safetensors_header() -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, size, shape) in TENSORS.items():
        end = at + size * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return header, bytes(range(256))[:at]


_HEADER, _DATA = _safetensors_header()
_SIZES = st.sampled_from(
    [*NUMBERS, *(o for e in _HEADER.values() for o in e.get("data_offsets", ()))]
)


def _with_header(text: bytes, blanks: int) -> bytes:
    text += b" " * blanks
    return len(text).to_bytes(8, "little") + text + _DATA


SOUND_SAFETENSORS = (_with_header(json.dumps(_HEADER).encode(), 0),)
SAFETENSORS = sometimes_damaged(
    st.builds(
        _with_header,
        json_edits.edited_text(
            [json_edits.base(_HEADER)],
            json_edits.VALUES
            | _SIZES
            | st.lists(_SIZES, max_size=4)
            | st.sampled_from(["U8", "BOOL"]),
        ),
        st.sampled_from([0, 0, 0, 5]),
    )
)

# GGUF -------------------------------------------------------------------------------------------

_HIDDEN, _WORDS = 32, ("<unk>", "<s>", "</s>", "a", "b", "ab", "Ġa", "<0x0A>")


def _blocks(kind: int, rows: int) -> tuple[tuple[int, ...], int, bytes]:
    values = np.linspace(-1, 1, rows * _HIDDEN, dtype=np.float32).reshape(rows, _HIDDEN)
    if kind == 0:
        return (_HIDDEN, rows), kind, values.tobytes()
    dtype = DTYPES[{1: "F16", 8: "Q8_0", 2: "Q4_0"}[kind]]
    return (_HIDDEN, rows), kind, bytes(encode_tensor(values, dtype).tobytes())


def _llama(name: str, model: str) -> gguf_files.File:
    metadata: dict[str, Any] = {
        "general.architecture": name,
        "general.alignment": gguf_files.ALIGNMENT,
        f"{name}.block_count": 1,
        f"{name}.context_length": 64,
        f"{name}.embedding_length": _HIDDEN,
        f"{name}.feed_forward_length": _HIDDEN,
        f"{name}.attention.head_count": 2,
        f"{name}.attention.head_count_kv": [1],
        f"{name}.attention.key_length": 16,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{name}.rope.freq_base": 10000.0,
        f"{name}.rope.dimension_count": 16,
        f"{name}.rope.scaling.type": "yarn",
        f"{name}.rope.scaling.factor": 2.0,
        f"{name}.rope.scaling.original_context_length": 32,
        f"{name}.attention.sliding_window": 16,
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "gpt-2" if model == "gpt2" else "default",
        "tokenizer.ggml.tokens": list(_WORDS),
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 6],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, 0.0],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }
    ones = ((_HIDDEN,), 0, np.ones(_HIDDEN, "<f4").tobytes())
    tensors = {
        "token_embd.weight": _blocks(8, len(_WORDS)),
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": _blocks(2, 16),
        "blk.0.attn_k.weight": _blocks(2, 8),
        "blk.0.attn_v.weight": _blocks(0, 1),
        "blk.0.ffn_gate.weight": _blocks(1, 2),
        "rope_freqs.weight": ((8,), 0, np.ones(8, "<f4").tobytes()),
        "output_norm.weight": ones,
    }
    return gguf_files.placed(metadata, tensors)


GGUF_FILES = (_llama("llama", "gpt2"), _llama("gemma2", "llama"), _llama("qwen2", "gpt2"))
SOUND_GGUF = tuple(gguf_files.encode(file) for file in GGUF_FILES)
GGUF = gguf_files.files(
    GGUF_FILES,
    ("split.count", "split.tensors.count", "tokenizer.ggml.eot_token_id", "llama.expert_count",
     "tokenizer.ggml.padding_token_id", "tokenizer.ggml.add_space_prefix", "llama.vocab_size",
     "gemma2.attn_logit_softcapping", "llama.rope.scaling.attn_factor", "qwen2.expert_used_count"),
)  # fmt: skip

# importance matrices ----------------------------------------------------------------------------


def _imatrix() -> gguf_files.File:
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": ["text.txt"],
        "imatrix.chunk_count": 3,
        "imatrix.chunk_size": 512,
    }
    sums, counts = np.arange(8, dtype="<f4"), np.array([3, 0], "<f4")
    tensors = {
        "blk.0.attn_q.weight.in_sum2": ((4, 2), 0, sums.tobytes()),
        "blk.0.attn_q.weight.counts": ((1, 2), 0, counts.tobytes()),
        "output.weight.in_sum2": ((4,), 0, sums[:4].tobytes()),
        "output.weight.counts": ((1,), 0, counts[:1].tobytes()),
    }
    return gguf_files.placed(metadata, tensors)


def _legacy(entries: list[tuple[bytes, int, int, bytes]], count: int, end: bytes) -> bytes:
    out = struct.pack("<i", count + len(entries))
    for name, calls, more, values in entries:
        out += struct.pack("<i", len(name)) + name
        out += struct.pack("<ii", calls, len(values) // 4 + more) + values
    return out + end


_CALLS = st.sampled_from([-(2**31), -1, 0, 1, 3, 2**31 - 1])
_MEANS = st.sampled_from([0.0, 1.0, -1.0, 1e38, 1e-45, float("nan"), float("inf")])
_LEGACY = st.builds(
    _legacy,
    st.lists(
        st.tuples(
            st.sampled_from([b"blk.0.attn_q.weight", b"", CONTROL.encode(), b"\xff", b"x" * 300]),
            _CALLS,
            st.sampled_from([0, 0, 0, 0, 1, -1, 2**30]),
            st.lists(_MEANS, max_size=6).map(lambda values: np.array(values, "<f4").tobytes()),
        ),
        max_size=4,
    ),
    st.sampled_from([0, 0, 0, 0, 1, -1, 2**17, 2**31 - 8, -(2**31)]),
    st.sampled_from([b"", struct.pack("<ii", 3, 8) + b"text.txt"]),
)
_SOUND_IMATRIX = _imatrix()
SOUND_IMATRIX = (
    gguf_files.encode(_SOUND_IMATRIX),
    _legacy([(b"output.weight", 3, 0, np.ones(4, "<f4").tobytes())], 0, b""),
)
IMATRIX = gguf_files.files([_SOUND_IMATRIX]) | sometimes_damaged(_LEGACY)

# compressed shards ------------------------------------------------------------------------------

FRAME = 8192


def one_shard() -> tuple[dict[str, Any], bytes]:
    """Return the manifest of a package with one compressed shard, and its content: zeros."""
    manifest = valid_manifest(layers=1)
    content = bytes(sum(shard["size"] for shard in manifest["shards"]))
    for entry in manifest["tensors"].values():
        spans = entry.pop("spans", None) or [
            {"shardIndex": entry["shard"], "offset": entry["offset"]}
        ]
        first = spans[0]
        entry |= {"shard": 0, "offset": first["shardIndex"] * SHARD_SIZE + first["offset"]}
    manifest["shards"] = [
        {"index": 0, "filename": "shard_00000.bin.zst", "size": 0, "hash": "", "offset": 0,
         "compression": "zstd", "uncompressedSize": len(content)}
    ]  # fmt: skip
    return manifest, content


_, CONTENT = one_shard()


def _shard(
    contents: tuple[bytes, ...],
    lies: list[tuple[int, int, int]],
    between: bytes,
    count: int,
) -> bytes:
    """Return zstd frames and a seek table in which some sizes are false.

    Args:
        contents: Uncompressed contents of the frames.
        lies: Frame, column (compressed or not) and the number added to that size.
        between: Bytes between the frames and the table.
        count: Number added to the frame count at the end of the table.
    """
    frames = [compress_frame(content, 1) for content in contents]
    sizes = [[len(frame), len(content)] for frame, content in zip(frames, contents, strict=True)]
    for frame, column, more in lies:
        if frame < len(sizes):
            sizes[frame][column] = max(0, sizes[frame][column] + more) % 2**32
    table = bytearray(encode_seek_table([(a, b) for a, b in sizes]))
    table[-9:-5] = (int.from_bytes(table[-9:-5], "little") + count).to_bytes(4, "little")
    return b"".join(frames) + between + bytes(table)


_SOUND_CONTENTS = tuple(CONTENT[at : at + FRAME] for at in range(0, len(CONTENT), FRAME))
SOUND_ZSTD = (_shard(_SOUND_CONTENTS, [], b"", 0),)
_CONTENTS = st.sampled_from([b"", b"a", CONTENT, CONTENT[:FRAME], bytes(1 << 20)])
ZSTD = sometimes_damaged(
    st.builds(
        _shard,
        st.one_of(
            st.just(_SOUND_CONTENTS),
            st.lists(_CONTENTS, max_size=4).map(tuple),
        ),
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.integers(0, 1),
                st.sampled_from([0, 1, -1, FRAME, -FRAME, 1 << 20, 1 << 24, 1 << 31]),
            ),
            max_size=2,
        ),
        st.sampled_from([b"", b"", b"", b"x", b"\x50\x2a\x4d\x18\x04\0\0\0abcd"]),
        st.sampled_from([0, 0, 0, 0, 1, 1 << 20, 1 << 30]),
    )
)  # fmt: skip
