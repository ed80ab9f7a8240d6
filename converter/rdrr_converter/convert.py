"""A checkpoint in, a package out: the order of the steps and nothing else.

open the source -> find the architecture -> match names and shapes -> scan magnitudes
-> plan -> hold the manifest to the rules -> encode and write -> verify what is on disk -> report
-> manifest, last
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from rdrr_format.compression import parse_compression
from rdrr_format.errors import ConversionError, ManifestError
from rdrr_format.locations import is_url, local_path
from rdrr_format.options import fill
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import Store, write_file
from rdrr_manifests.graph import derive_graph
from rdrr_manifests.models import MANIFEST_NAME, Manifest
from rdrr_manifests.models.conversion_report import REPORT_NAME

from rdrr_converter.architectures import find_architecture
from rdrr_converter.check_manifest import check_manifest, check_tokenizer
from rdrr_converter.check_options import check_options
from rdrr_converter.delivery import Delivery, Target, delivery
from rdrr_converter.devices import CPU, Opening, check_device, open_device
from rdrr_converter.engines import check_engine, open_engine
from rdrr_converter.fingerprint import fingerprint
from rdrr_converter.groups import describe_groups
from rdrr_converter.importance import load_importance
from rdrr_converter.importance_notes import importance_notes
from rdrr_converter.lora import merge_adapter
from rdrr_converter.manifest import build_manifest
from rdrr_converter.measure import TensorError
from rdrr_converter.options import ConvertKeywords, ConvertOptions, PackageOptions
from rdrr_converter.pack import write_shards
from rdrr_converter.plan import ConversionPlan, make_plan
from rdrr_converter.quantize import Workforce
from rdrr_converter.reading import SourceModel, read_model
from rdrr_converter.report import (
    ConversionResult,
    Progress,
    ProgressCallback,
    TensorReport,
    describe_conversion,
)
from rdrr_converter.scan import scan
from rdrr_converter.sources import Source, open_source
from rdrr_converter.sources.nearby import nearby
from rdrr_converter.tokenizer import TOKENIZER_JSON, copy_files
from rdrr_converter.verify import verify

MAX_WORKERS = 8
"""Threads by default at most; each holds a few chunks in memory."""

FETCHERS = 16
"""Threads of the first pass at least, where it fetches what it reads."""


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    options: ConvertOptions | None = None,
    progress: ProgressCallback | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> ConversionResult:
    """Convert a checkpoint to an RDRR package.

    Args:
        source: Hugging Face directory (safetensors or PyTorch), one of its files of weights, or
            a GGUF file; by its path, its URL, or `hf://org/name[@revision]`.
        destination: Folder to make, or its URL on an object store. The package appears when it is
            complete.
        options: What the package is and how the work is done.
        progress: Called as the work goes on, from the calling thread.
        keywords: Fields of `ConvertOptions`, in place of `options`.

    Raises:
        UsageError: An option is wrong.
        DeviceError: There is no such device, or it fails.
        SourceError: The checkpoint cannot be read.
        ConversionError: It cannot be packaged as asked.
        StoreError: The destination exists or cannot be written, or holds an unfinished
            conversion of something else.
    """
    chosen = fill(ConvertOptions, options, keywords, parameter="options")
    check_options(chosen)
    check_engine(chosen.engine, chosen.ray_address)
    check_device(chosen.device, chosen.adapter, chosen.engine)
    target = Target(source, destination, overwrite=chosen.overwrite, resume=chosen.resume)
    if not chosen.dry_run:
        target.check()
    with (
        open_device(CPU if chosen.dry_run else chosen.device, chosen.adapter) as encoder,
        nearby(source) as path,
        _adapter(chosen) as merged,
    ):
        crew = _Crew(
            threads=chosen.workers or min(os.cpu_count() or 1, MAX_WORKERS),
            fetchers=FETCHERS if is_url(source) else 0,
            engine=chosen.engine,
            ray_address=chosen.ray_address,
            device=encoder,
            device_name=chosen.device,
        )
        counter = Progress(progress, encoder.check)
        return _convert(path, merged, target, chosen, crew, counter)


def _adapter(options: PackageOptions) -> AbstractContextManager[Path | None]:
    return nullcontext() if options.lora is None else nearby(options.lora)


@dataclass(frozen=True)
class _Crew:
    """Who works: threads here, those that wait for a network, and who encodes."""

    threads: int
    fetchers: int
    engine: str
    ray_address: str | None
    device: Opening
    device_name: str

    @contextmanager
    def workforce(self) -> Iterator[Workforce]:
        """The engine and the device, as long as the engine is open."""
        with open_engine(self.engine, self.threads, self.ray_address) as engine:
            yield Workforce(engine, self.device.wait(), self.device_name)


def _convert(
    source: Path,
    adapter: Path | None,
    target: Target,
    options: ConvertOptions,
    crew: _Crew,
    counter: Progress,
) -> ConversionResult:
    threads = crew.threads
    opened = open_source(source)
    if adapter is not None:
        opened = merge_adapter(opened, adapter)
    rule = find_architecture(opened.config, options.arch, opened.config_place)
    model = read_model(opened, rule)
    matrix = None if options.imatrix is None else load_importance(local_path(options.imatrix))
    magnitudes = scan(model, max(threads, crew.fetchers), counter)
    plan = make_plan(model, options, magnitudes, matrix)
    draft, notes = build_manifest(opened, model, plan, options, ())
    check_manifest(draft, plan, opened.config_place)
    content = opened.content(TOKENIZER_JSON)
    notes = (*notes, *check_tokenizer(draft, content, opened.path / TOKENIZER_JSON))
    notes = (*opened.notes, *model.notes, *plan.origins(), *notes, *_check_graph(draft))
    if matrix is not None:
        notes = (*notes, *importance_notes(plan, matrix))
    errors: dict[str, TensorError] = {}
    reused, blocks = 0, Counter[str]()
    if not options.dry_run:
        job = _Job(opened, model, plan, options, notes, counter)
        made = fingerprint(opened, plan, options, magnitudes)
        with (
            crew.workforce() as workforce,
            delivery(target, made, threads, options.hash_algorithm) as package,
        ):
            shards = job.write(package, workforce, threads)
            draft, errors = job.finish(package.store, shards, threads)
            reused, blocks = len(package.done), workforce.blocks
    return ConversionResult(
        destination=target.place,
        model_id=draft.model_id,
        architecture=model.name,
        dry_run=options.dry_run,
        total_size=draft.total_size,
        plan=plan,
        tensors=tuple(TensorReport.of(t, errors.get(t.name)) for t in plan.tensors),
        overflowed=tuple(tensor.name for tensor in plan.tensors if tensor.overflowed),
        notes=notes,
        reused_shards=reused,
        encoded_blocks=blocks,
    )


@dataclass(frozen=True)
class _Job:
    """A conversion about which everything is decided."""

    source: Source
    model: SourceModel
    plan: ConversionPlan
    options: PackageOptions
    notes: Sequence[str]
    progress: Progress

    def write(self, package: Delivery, workforce: Workforce, workers: int) -> tuple[ShardInfo, ...]:
        """Write the shards that are not done, and return them all."""
        writer = ShardWriter(
            package.store,
            self.options.shard_size,
            self.options.hash_algorithm,
            parse_compression(self.options.compress) if self.options.compress else None,
            workers,
            done=package.done,
            position=sum(self.plan.shard_sizes[: len(package.done)]),
            finished=package.finished,
        )
        return write_shards(self.plan, writer, self.options, workforce, self.progress)

    def finish(
        self, store: Store, shards: Sequence[ShardInfo], workers: int
    ) -> tuple[Manifest, dict[str, TensorError]]:
        """Verify, write the other files, manifest last; return it and what each tensor lost."""
        algorithm = self.options.hash_algorithm
        errors = verify(self.plan, store, shards, algorithm, workers, self.progress)
        copy_files(self.source, store)
        groups = describe_groups(self.plan, store, shards) if self.model.moe else None
        manifest, _ = build_manifest(
            self.source, self.model, self.plan, self.options, shards, groups
        )
        report = describe_conversion(manifest, self.model.name, self.plan, errors, self.notes)
        for name, text in ((REPORT_NAME, report.to_json()), (MANIFEST_NAME, manifest.to_json())):
            write_file(store, name, text.encode())
        return manifest, errors


def _check_graph(manifest: Manifest) -> tuple[str, ...]:
    """A note if the package cannot be run yet.

    Raises:
        ConversionError: The graph and the tensors disagree, which is a fault of the
            architecture's file.
    """
    try:
        graph = derive_graph(manifest)
    except ManifestError as error:
        return (f"not runnable here yet: {error}",)
    for use in graph.weights():
        tensor = manifest.tensors.get(use.name)
        found = None if tensor is None else list(tensor.shape)
        if found != list(use.shape):
            raise ConversionError(
                "the graph calls for another tensor than the architecture gave",
                where=use.name,
                expected=list(use.shape),
                found=found,
            )
    return ()
