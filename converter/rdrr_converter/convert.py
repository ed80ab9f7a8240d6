"""The conversion of a checkpoint to a package: the order of its steps and nothing else.

open the source -> find the architecture -> match names and shapes -> scan magnitudes -> plan
-> validate the planned manifest -> encode and write the shards -> verify what is on disk
-> write the conversion report -> write the manifest, which is the last file
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from rdrr_format.compression import parse_compression
from rdrr_format.errors import ConversionError, ManifestError, UsageError
from rdrr_format.locations import is_url, local_path
from rdrr_format.misuse import explained
from rdrr_format.options import fill
from rdrr_format.shard_writer import ShardWriter
from rdrr_format.shards import ShardInfo
from rdrr_format.stores import Store, write_file
from rdrr_manifests.graph import derive_graph, derive_mtp
from rdrr_manifests.models import MANIFEST_NAME, Manifest
from rdrr_manifests.models.conversion_report import REPORT_NAME

from rdrr_converter.allocation import Planner, allocate, take_types
from rdrr_converter.check_options import check_importance, check_options
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.devices import CPU, PendingDevice, check_device, open_device
from rdrr_converter.encode.measure import ErrorStats
from rdrr_converter.encode.pack import write_shards
from rdrr_converter.encode.quantize import WorkerPool
from rdrr_converter.encode.verify import verify
from rdrr_converter.engines import check_engine, open_engine
from rdrr_converter.importance import load_importance
from rdrr_converter.lora import merge_adapter
from rdrr_converter.options import ConvertKeywords, ConvertOptions, PackageOptions
from rdrr_converter.output.check_manifest import backend_notes, check_manifest, check_tokenizer
from rdrr_converter.output.fingerprint import fingerprint
from rdrr_converter.output.groups import describe_groups
from rdrr_converter.output.manifest import build_manifest
from rdrr_converter.output.report import (
    ConversionResult,
    TensorReport,
    describe_conversion,
    requantization_notes,
)
from rdrr_converter.output.target import PackageOutput, Target, open_output
from rdrr_converter.plan import ConversionPlan, EncodedTensors
from rdrr_converter.planning import make_plan
from rdrr_converter.progress import Progress, ProgressCallback
from rdrr_converter.reading.architecture import choose_architecture
from rdrr_converter.reading.model import SourceModel, read_model
from rdrr_converter.reading.scan import scan
from rdrr_converter.source_types import settle_quantization
from rdrr_converter.sources import open_source
from rdrr_converter.sources.staging import stage_locally
from rdrr_converter.tokenizer.adapter import with_adapter_tokenizer
from rdrr_converter.tokenizer.build import with_tokenizer
from rdrr_converter.tokenizer.files import TOKENIZER_JSON, copy_files
from rdrr_converter.tokenizer.stated import with_stated_tokens

MAX_WORKERS = 8
"""The default number of threads is at most this; each holds a few chunks in memory."""

FETCHERS = 16
"""Minimum number of threads for the scan of a remote source, where most of them wait for data."""


@explained
def convert(
    source: str | Path,
    destination: str | Path,
    *,
    options: ConvertOptions | None = None,
    progress: ProgressCallback | None = None,
    encoded: EncodedTensors | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> ConversionResult:
    """Convert a checkpoint without running the model: `rdrr.convert`, which says more, calls this.

    Args:
        source: The checkpoint.
        destination: The folder to create, or its URL.
        options: Options of the package and of the work.
        progress: Called with each progress event.
        encoded: What methods of the option `quality` chose, if there are any.
        keywords: Fields of `ConvertOptions`, given instead of `options`.

    Raises:
        UsageError: An option is invalid, or it needs a run of the model.
        DeviceError, SourceError, ConversionError, StoreError: As `rdrr.convert` raises them.
    """
    chosen = fill(ConvertOptions, options, keywords, parameter="options")
    check_options(chosen)
    _check_runs(chosen, encoded)
    check_engine(chosen.engine, chosen.ray_address)
    check_device(chosen.device, chosen.adapter, chosen.engine)
    target = Target(source, destination, overwrite=chosen.overwrite, resume=chosen.resume)
    if not chosen.dry_run:
        target.check()
    with (
        open_device(CPU if chosen.dry_run else chosen.device, chosen.adapter) as encoder,
        stage_locally(source) as path,
        _staged(chosen.lora) as adapter,
        _staged(chosen.mmproj) as mmproj,
    ):
        settings = _WorkerSettings(
            threads=chosen.workers or min(os.cpu_count() or 1, MAX_WORKERS),
            fetchers=FETCHERS if is_url(source) else 0,
            engine=chosen.engine,
            ray_address=chosen.ray_address,
            device=encoder,
            device_name=chosen.device,
        )
        counter = Progress(progress, encoder.check)
        inputs = _Inputs(path, adapter, mmproj)
        return _convert(inputs, target, chosen, settings, counter, encoded)


def _check_runs(options: ConvertOptions, encoded: EncodedTensors | None) -> None:
    """Refuse options for which the model would have to run."""
    runs = [f"`quality` {name}" for name in options.methods if encoded is None]
    if options.measure is not None:
        runs.append("`measure`")
    if runs:
        raise UsageError(
            "the converter runs no model",
            expected=f"no {' and no '.join(runs)}",
            hint="`rdrr.convert` has it",
        )


def _staged(location: str | Path | None) -> AbstractContextManager[Path | None]:
    """Make a local copy of an adapter or a tower if it is remote; None if none is given."""
    return nullcontext() if location is None else stage_locally(location)


@dataclass(frozen=True)
class _Inputs:
    """The local paths of what is converted.

    Attributes:
        source: The checkpoint.
        adapter: The adapter to merge; None if there is none.
        mmproj: The file of the vision tower; None if it is not named.
    """

    source: Path
    adapter: Path | None
    mmproj: Path | None


@dataclass(frozen=True)
class _WorkerSettings:
    """The threads, the engine and the device that a conversion uses.

    Attributes:
        threads: Number of threads on this machine.
        fetchers: Minimum number of threads for the scan; 0 for a local source.
        engine: One of `ENGINES`.
        ray_address: Address of the Ray cluster; None to start a local one.
        device: The device that encodes blocks, which may still be opening.
        device_name: One of `DEVICES`.
    """

    threads: int
    fetchers: int
    engine: str
    ray_address: str | None
    device: PendingDevice
    device_name: str

    @contextmanager
    def open_pool(self) -> Iterator[WorkerPool]:
        """Open the engine and wait for the device; the engine closes with the block."""
        with open_engine(self.engine, self.threads, self.ray_address) as engine:
            yield WorkerPool(engine, self.device.wait(), self.device_name)


def _convert(
    inputs: _Inputs,
    target: Target,
    options: ConvertOptions,
    settings: _WorkerSettings,
    counter: Progress,
    encoded: EncodedTensors | None,
) -> ConversionResult:
    threads, adapter = settings.threads, inputs.adapter
    keeps_tower = not options.without_vision and options.profile == "rdrr"
    opened = open_source(
        inputs.source, follow_links=options.follow_links, mmproj=inputs.mmproj, sees=keeps_tower
    )
    if adapter is not None:
        opened = with_adapter_tokenizer(opened, adapter)
    opened = with_stated_tokens(with_tokenizer(opened))
    rule = choose_architecture(opened, options.arch)
    if adapter is not None:
        opened = merge_adapter(opened, adapter, rule.is_stored_transposed)
    options = settle_quantization(options, opened, rule.row_tail)
    keeps_draft_head = not options.without_draft_head and options.profile == "rdrr"
    model = read_model(
        opened,
        rule,
        options.allow_unread,
        keeps_draft_head=keeps_draft_head,
        keeps_tower=keeps_tower,
    )
    if inputs.mmproj is not None and model.tower.block is None:
        raise ConversionError("; ".join(model.tower.notes), where=inputs.mmproj)
    matrix = None if options.imatrix is None else load_importance(local_path(options.imatrix))
    check_importance(options, has_rows=matrix is not None and matrix.has_rows)
    magnitudes = scan(model, max(threads, settings.fetchers), counter)
    plan, plan_notes = _plan(
        partial(make_plan, model, options, magnitudes, matrix), options, threads
    )
    if encoded is not None:
        plan, plan_notes = plan.with_encoded(encoded), (*plan_notes, *encoded.notes)
    draft, notes = build_manifest(opened, model, plan, options, ())
    check_manifest(draft, plan, opened.config_path)
    content = opened.content(TOKENIZER_JSON)
    notes = (*notes, *check_tokenizer(draft, content, opened.path / TOKENIZER_JSON))
    notes = (*plan_notes, *notes, *_check_graph(draft))
    notes = (*opened.notes, *model.notes, *plan.source_notes(), *notes)
    if matrix is not None:
        notes = (*notes, *plan.importance_notes(matrix))
    errors: dict[str, ErrorStats] = {}
    reused, blocks = 0, Counter[str]()
    if not options.dry_run:
        job = _Job(opened, model, plan, options, notes, counter)
        conversion_fingerprint = fingerprint(opened, plan, options, magnitudes)
        with (
            settings.open_pool() as pool,
            open_output(target, conversion_fingerprint, threads, options.hash_algorithm) as package,
        ):
            shards = job.write(package, pool, threads)
            draft, errors = job.finish(package.store, shards, threads)
            notes = (*notes, *requantization_notes(plan, errors))
            reused, blocks = len(package.done), pool.blocks
    return ConversionResult(
        destination=target.location,
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


def _plan(
    plan: Planner, options: PackageOptions, threads: int
) -> tuple[ConversionPlan, tuple[str, ...]]:
    """Make the plan with the types that the options ask for, and a note on how they were chosen."""
    if options.plan is not None:
        return take_types(plan, local_path(options.plan)), ()
    usual = plan({})
    limit = options.size
    if options.bits_per_weight is not None:
        limit = int(options.bits_per_weight * sum(t.weights for t in usual.tensors) / 8)
    if limit is None:
        return usual, ()
    with open_engine("threads", threads) as engine:
        allocation = allocate(plan, limit, engine)
    return allocation.plan, (allocation.note(),)


@dataclass(frozen=True)
class _Job:
    """A conversion whose decisions are all made, ready to be written."""

    source: Source
    model: SourceModel
    plan: ConversionPlan
    options: PackageOptions
    notes: Sequence[str]
    progress: Progress

    def write(
        self, package: PackageOutput, pool: WorkerPool, workers: int
    ) -> tuple[ShardInfo, ...]:
        """Write the shards that are not reused, and return all shards."""
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
        return write_shards(self.plan, writer, self.options, pool, self.progress)

    def finish(
        self, store: Store, shards: Sequence[ShardInfo], workers: int
    ) -> tuple[Manifest, dict[str, ErrorStats]]:
        """Verify the shards and write the other files, the manifest last.

        Returns:
            The manifest, and the error of each tensor by its name.
        """
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
    """Derive the graph, and return notes if the runtime or a backend does not support it.

    Raises:
        ConversionError: The shapes in the graph differ from those of the tensors, which is a
            mistake in the architecture's file.
    """
    try:
        graph, head = derive_graph(manifest), derive_mtp(manifest)
    except ManifestError as error:
        return (f"not runnable here yet: {error}",)
    for use in (*graph.weights(), *(() if head is None else head.weights())):
        tensor = manifest.tensors.get(use.name)
        shape = None if tensor is None else list(tensor.shape)
        if shape != list(use.shape):
            raise ConversionError(
                "the graph expects another shape than the architecture file declares",
                where=use.name,
                expected=list(use.shape),
                found=shape,
            )
    return backend_notes(graph, manifest)
