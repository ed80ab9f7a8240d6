"""The table of what is fuzzed: parsers by name, sound cases, and how hostile ones are made.

A further parser is a reader in `readers.py`, a strategy of cases, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzz import jinja_texts, manifests, readers, text_files, weight_files
from fuzz.byte_edits import damaged
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
"""A folder for each target, with cases that were findings once, or that reach a refusal."""


@dataclass(frozen=True)
class Target:
    """A parser and its cases.

    Attributes:
        open: Makes the reader, in an empty folder.
        sound: Cases that it accepts.
        hostile: Cases that may be anything.
    """

    open: Callable[[Path], readers.Reader]
    sound: Sequence[bytes]
    hostile: st.SearchStrategy[bytes]


TARGETS: Mapping[str, Target] = {
    "manifest": Target(readers.PackageReader, manifests.SOUND, manifests.CASES),
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
    "report": Target(readers.ReportReader, text_files.SOUND_REPORTS, text_files.REPORTS),
}


def kept(name: str) -> dict[str, bytes]:
    """The cases of a target's corpus by their file names."""
    folder = CORPUS / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))}


def cases(name: str) -> st.SearchStrategy[bytes]:
    """Cases of a target: its own, and damage done to its sound ones and to those of the corpus."""
    target = TARGETS[name]
    known = [*target.sound, *kept(name).values()]
    return st.one_of(
        target.hostile, target.hostile, target.hostile, damaged(st.sampled_from(known))
    )
