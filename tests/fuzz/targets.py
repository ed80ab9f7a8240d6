"""The table of fuzzing targets: parsers by name, sound cases, and strategies for hostile ones.

To add a parser, write a reader in `readers.py`, a strategy of cases, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzz import (
    image_files,
    jinja_texts,
    manifests,
    other_weights,
    programs,
    readers,
    text_files,
    weight_files,
)
from fuzz.byte_edits import damaged
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
"""Holds one folder per target, with former findings and cases that reach a certain refusal."""


@dataclass(frozen=True)
class Target:
    """A parser and its cases.

    Attributes:
        open: Creates the reader in an empty folder.
        sound: Cases that the parser must accept.
        hostile: Strategy for cases of any kind.
    """

    open: Callable[[Path], readers.Reader]
    sound: Sequence[bytes]
    hostile: st.SearchStrategy[bytes]


TARGETS: Mapping[str, Target] = {
    "manifest": Target(readers.PackageReader, manifests.SOUND, manifests.CASES),
    "program": Target(readers.ProgramReader, programs.SOUND, programs.CASES),
    "safetensors": Target(
        partial(readers.CheckpointReader, name="model.safetensors"),
        weight_files.SOUND_SAFETENSORS,
        weight_files.SAFETENSORS,
    ),
    "gguf": Target(
        partial(readers.CheckpointReader, name="model.gguf"),
        weight_files.SOUND_GGUF,
        weight_files.GGUF,
    ),
    "torch": Target(
        partial(readers.CheckpointReader, name="pytorch_model.bin"),
        other_weights.SOUND_TORCH,
        other_weights.TORCH,
    ),
    "session": Target(readers.SessionReader, other_weights.SOUND_SESSIONS, other_weights.SESSIONS),
    "lora": Target(readers.LoraReader, other_weights.SOUND_LORA, other_weights.LORA),
    "zstd": Target(readers.ShardReader, weight_files.SOUND_ZSTD, weight_files.ZSTD),
    "imatrix": Target(readers.ImatrixReader, weight_files.SOUND_IMATRIX, weight_files.IMATRIX),
    "template": Target(
        readers.TemplateReader,
        tuple(source.encode() for source in jinja_texts.SOUND),
        jinja_texts.SOURCES.map(lambda source: source.encode("utf-8", "surrogatepass")),
    ),
    "tokenizer": Target(
        readers.TokenizerReader, text_files.SOUND_TOKENIZERS, text_files.TOKENIZERS
    ),
    "chat": Target(readers.ChatReader, text_files.SOUND_REQUESTS, text_files.REQUESTS),
    "config": Target(readers.ConfigReader, text_files.SOUND_CONFIGS, text_files.CONFIGS),
    "adapter": Target(readers.AdapterReader, text_files.SOUND_ADAPTERS, text_files.ADAPTERS),
    "image": Target(readers.ImageReader, image_files.SOUND_IMAGES, image_files.IMAGES),
    "report": Target(readers.ReportReader, text_files.SOUND_REPORTS, text_files.REPORTS),
}


def kept(name: str) -> dict[str, bytes]:
    """Return the cases of a target's corpus by file name."""
    folder = CORPUS / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


def cases(name: str) -> st.SearchStrategy[bytes]:
    """Return a strategy for a target: its own cases, and damaged sound cases and corpus cases."""
    target = TARGETS[name]
    known = [*target.sound, *kept(name).values()]
    return st.one_of(
        target.hostile, target.hostile, target.hostile, damaged(st.sampled_from(known))
    )
