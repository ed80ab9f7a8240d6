"""Each parser of the suite, called as a command or a caller calls it, on the bytes of one case.

A reader returns or raises an `RdrrError`; anything else that happens is a finding. Readers are
objects, so that a process prepares once whatever does not depend on the case.
"""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzz import weight_files
from rdrr_converter.gguf.imatrix import read_imatrix
from rdrr_converter.lora import merge_adapter
from rdrr_converter.lora._config import read_adapter_config
from rdrr_converter.sources import open_source
from rdrr_converter.tokenizer.files import describe_tokenizer, eos_token_ids
from rdrr_format.errors import RdrrError
from rdrr_manifests.package import Package, open_package
from rdrr_manifests.validation import validate
from support.manifests import valid_manifest, write_package
from support.session_files import read_whole

SMALL = 1 << 20
"""Largest size in bytes of a tensor that is read completely."""


class Reader(ABC):
    """A function that parses one case.

    Args:
        folder: An empty folder for files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def __call__(self, case: bytes) -> None:
        """Parse a case.

        Raises:
            RdrrError: The case is refused.
        """


class PackageReader(Reader):
    """Reads the case as the manifest of a package whose other files are sound."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        write_package(folder, np.random.default_rng(0), valid_manifest(layers=1))

    def __call__(self, case: bytes) -> None:
        (self.folder / "manifest.json").write_bytes(case)
        read_package(self.folder)


class ProgramReader(Reader):
    """Reads the case as a program, and resolves it at its smallest context."""

    def __call__(self, case: bytes) -> None:
        from rdrr_runtime.program.files import at_context, read_program

        program = read_program(case)
        at_context(program, program.contexts.least)


class ShardReader(Reader):
    """Reads the case as a compressed shard whose true size and hash the manifest states."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._manifest, _ = weight_files.one_shard()
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")

    def __call__(self, case: bytes) -> None:
        manifest = copy.deepcopy(self._manifest)
        manifest["shards"][0] |= {"size": len(case), "hash": hashlib.sha256(case).hexdigest()}
        manifest["totalSize"] = len(case)
        (self.folder / "shard_00000.bin.zst").write_bytes(case)
        (self.folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        read_package(self.folder)


def read_package(folder: Path) -> None:
    """Validate a package, then read everything that can be read of it.

    Raises:
        RdrrError: The package is refused.
    """
    report = validate(folder, deep=True)
    for fault in report.faults:
        check_line(fault.line())
    with open_package(folder) as package:
        for name, tensor in package.manifest.tensors.items():
            if tensor.size <= SMALL:
                package.read(name)


def check_line(line: str) -> None:
    """Fail unless a line that a command prints is as short and printable as promised."""
    if not line.isprintable() or len(line) >= 2000:
        raise AssertionError(f"a line of {len(line)} characters: {line[:300]!a}")


class CheckpointReader(Reader):
    """Reads the case as the weights file of a checkpoint.

    Args:
        folder: An empty folder for files.
        name: Name of the weights file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._name = name
        if not name.endswith(".gguf"):
            (folder / "config.json").write_text(json.dumps(weight_files.CONFIG), encoding="utf-8")

    def __call__(self, case: bytes) -> None:
        (self.folder / self._name).write_bytes(case)
        source = open_source(self.folder)
        describe_tokenizer(source)
        eos_token_ids(source)
        for tensor in source.tensors.values():
            if tensor.rows * tensor.columns <= SMALL:
                tensor.read()


class ImatrixReader(Reader):
    """Reads the case as a file with an importance matrix."""

    def __call__(self, case: bytes) -> None:
        path = self.folder / "imatrix.gguf"
        path.write_bytes(case)
        read_imatrix(path)


class AdapterReader(Reader):
    """Reads the case as the configuration of a LoRA adapter, and uses the patterns in it."""

    def __call__(self, case: bytes) -> None:
        (self.folder / "adapter_config.json").write_bytes(case)
        config = read_adapter_config(self.folder)
        for module in ("model.layers.0.self_attn.q_proj", "x" * 1024, ""):
            config.rank_of(module)
            config.scale_of(module)


class LoraReader(Reader):
    """Reads the case as a LoRA adapter, its configuration in the first line, and merges it."""

    def __init__(self, folder: Path) -> None:
        from support.safetensor_files import llama_tensors, write_llama

        super().__init__(folder)
        sizes = {key: value for key, value in weight_files.CONFIG.items() if isinstance(value, int)}
        base = write_llama(
            folder / "base", llama_tensors(np.random.default_rng(0), **sizes), **sizes
        )
        self._base = open_source(base)
        (folder / "adapter").mkdir()

    def __call__(self, case: bytes) -> None:
        settings, _, weights = case.partition(b"\n")
        (self.folder / "adapter" / "adapter_config.json").write_bytes(settings)
        (self.folder / "adapter" / "adapter_model.safetensors").write_bytes(weights)
        merged = merge_adapter(self._base, self.folder / "adapter")
        for tensor in merged.tensors.values():
            if tensor.rows * tensor.columns <= SMALL:
                tensor.read()


class SessionReader(Reader):
    """Reads the case as a saved session with its sampling parameters."""

    def __call__(self, case: bytes) -> None:
        (self.folder / "session").write_bytes(case)
        read_whole(self.folder / "session")


class ImageReader(Reader):
    """Reads the case as an image of a prompt."""

    def __call__(self, case: bytes) -> None:
        from rdrr_runtime.images.prompt import read_images
        from support.images import QWEN

        read_images(QWEN, [case], max_tokens=16)


class ConfigReader(Reader):
    """Reads the case as the configuration of a checkpoint, as `convert --dry-run` does."""

    def __init__(self, folder: Path) -> None:
        from fuzz.text_files import SOUND_TOKENIZERS
        from support.safetensor_files import llama_tensors, write_llama

        super().__init__(folder)
        sizes = {"vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
                 "num_hidden_layers": 1}  # fmt: skip
        write_llama(folder / "model", llama_tensors(np.random.default_rng(0), **sizes), **sizes)
        (folder / "model" / "tokenizer.json").write_bytes(SOUND_TOKENIZERS[0])

    def __call__(self, case: bytes) -> None:
        from rdrr_converter.convert import convert

        (self.folder / "model" / "config.json").write_bytes(case)
        convert(self.folder / "model", self.folder / "out", dry_run=True, workers=1)


class ReportReader(Reader):
    """Reads the case as a conversion report, and renders its page."""

    def __call__(self, case: bytes) -> None:
        from rdrr._report_html import render
        from rdrr._report_view import view
        from rdrr_manifests.models.conversion_report import parse_report

        render(view(parse_report(case, "conversion-report.json")))


TURNS = [
    {"role": "system", "content": "Be brief; <b>be</b> & 'kind'."},
    {"role": "user", "content": "Grüße, 你好\n  "},
    {"role": "assistant", "content": " Hello.\n"},
    {"role": "user", "content": "And?"},
]
TEXT = "Grüße a ab  abba\n\n你好 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \x00\U0001f600<s></s><|end|>123"


class TemplateReader(Reader):
    """Reads the case as a chat template in a file of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._package = sound_package(folder / "package")

    def __call__(self, case: bytes) -> None:
        from rdrr._chat_template import open_template

        path = self.folder / "chat_template.jinja"
        path.write_bytes(case)
        template = open_template(self._package, file=path)
        template.render(TURNS, tools=[{"function": {"name": "f"}}])
        template.after_answer()


def sound_package(folder: Path) -> Package:
    """Write and open a package that breaks no rule."""
    write_package(folder, np.random.default_rng(0), valid_manifest(layers=1))
    return open_package(folder)


class TokenizerReader(Reader):
    """Reads the case as a tokenizer.json, then encodes texts and decodes ids."""

    def __call__(self, case: bytes) -> None:
        from rdrr_runtime.text.tokenizer import TextCodec

        codec = TextCodec(case, bos_token_id=1, add_bos=True)
        ids = codec.encode(TEXT)
        codec.encode_as_is(TEXT)
        codec.decode(ids)
        codec.decode(list(range(12)))
        stream = codec.stream()
        for id_ in [*ids, *range(12)]:
            codec.is_special(id_)
            stream.feed(id_)


class ChatReader(Reader):
    """Reads the case as all inputs of a chat: messages, template settings, tools, a format."""

    def __init__(self, folder: Path) -> None:
        from fuzz.text_files import SOUND_TOKENIZERS
        from rdrr_runtime.text.grammar import GrammarTokenizer

        super().__init__(folder)
        self._package = sound_package(folder / "package")
        self._grammars = GrammarTokenizer(SOUND_TOKENIZERS[0], 16, [2])

    def __call__(self, case: bytes) -> None:
        from rdrr._chat import Conversation
        from rdrr._chat_template import open_template
        from rdrr._response_format import read_response_format

        request = as_object(case)
        saved = self.folder / "messages.json"
        saved.write_text(json.dumps(request.get("messages")), encoding="utf-8")
        each: list[RdrrError] = []
        model: Any = SimpleNamespace()
        conversation = Conversation(model)
        with collected(each):
            conversation.load(saved)
        (self.folder / "package" / "tokenizer_config.json").write_text(
            json.dumps(request.get("settings")),
            encoding="utf-8",
        )
        with collected(each):
            messages = request.get("messages")
            template = open_template(self._package, tools=bool(request.get("tools")))
            template.render(
                messages if isinstance(messages, list) else [],
                tools=request.get("tools"),
                variables=as_mapping(request.get("variables")),
            )
        with collected(each):
            grammar = read_response_format(as_mapping(request.get("response_format")) or None)
            if grammar is not None:
                constraint = self._grammars.constraint(grammar)
                constraint.mask()
        if each:
            raise each[0]


class collected:  # noqa: N801 - used like a function
    """A context manager that collects an `RdrrError` and continues after it."""

    def __init__(self, errors: list[RdrrError]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Collect an `RdrrError` and suppress it; let any other error pass."""
        if isinstance(error, RdrrError):
            self._errors.append(error)
            return True
        return False


def as_object(case: bytes) -> dict[str, Any]:
    """Return the case as a JSON object, or an empty one: callers pass parsed JSON."""
    try:
        return as_mapping(json.loads(case))
    except (ValueError, RecursionError):
        return {}


def as_mapping(value: Any) -> dict[str, Any]:
    """Return a mapping unchanged, and an empty one for any other value."""
    return dict(value) if isinstance(value, Mapping) else {}
