"""A sequence that several calls continue, and that can be saved and resumed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import FormatError, UsageError
from rdrr_format.locations import local_path
from rdrr_format.misuse import explained

from rdrr._arguments import prompt_ids, stop_strings
from rdrr._generation import Generation

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.decode.interval import Interval
    from rdrr_runtime.engine import Engine
    from rdrr_runtime.sampling.params import SamplingParams
    from rdrr_runtime.text.tokenizer import TextCodec


@explained
class Session:
    """A sequence with its keys and values and its sampler; made by `Model.session`.

    All sessions share the key-value cache of the model. When another sequence has overwritten the
    keys and values of a session, its next call computes them again. The generated ids are the same
    either way. Calls from several threads take turns, as those of the model do.

    Args:
        engine: Runs the model.
        codec: The tokenizer.
        package: The package, whose identity `save` writes.
        sampling: How tokens are chosen, with a seed.
        ids: Token ids of the sequence so far.
    """

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        package: Package,
        *,
        sampling: SamplingParams,
        ids: Sequence[int] = (),
    ) -> None:
        self._engine, self._codec, self._package = engine, codec, package
        self._sampling = sampling
        self._before = list(ids)
        self._images: list[int] = []
        self._hold()
        self._current: Generation | None = None
        self._changing = threading.RLock()

    @property
    def ids(self) -> list[int]:
        """Token ids of the whole sequence, prompts and generated tokens."""
        current = self._current
        return self._before + (current.token_ids if current is not None else [])

    @property
    def text(self) -> str:
        """The whole text, without special tokens."""
        return self._codec.decode(self.ids)

    def append(self, text: str | Sequence[int]) -> None:
        """Append a prompt to the sequence; the next `generate` runs it.

        Args:
            text: Text, or token ids. The special tokens and the space that a prompt begins with are
                added to the first text only.
        """
        with self._settled():
            encode = self._codec.encode_continued if self._before else self._codec.encode
            self._before += prompt_ids(text, encode)
            self._hold()

    def generate(
        self, *, max_tokens: int = 128, stop: str | Sequence[str] = (), interval: Interval = "auto"
    ) -> Generation:
        """Continue the sequence; the generated tokens become part of it.

        Args:
            max_tokens: Most new tokens.
            stop: One or several strings that end the generation; their tokens stay in the sequence.
            interval: Tokens between two readbacks from the GPU, or `auto`, which chooses up to 8
                by the measured speed, so that text comes steadily; ids do not depend on it.

        Raises:
            GenerationError: The sequence is empty or longer than the context.
            UsageError: An option is out of range.
        """
        from rdrr_runtime.decode.stats import GenerationStats

        stops = stop_strings(stop)
        stats = GenerationStats()
        with self._settled():
            runs = self._engine.generate(
                self._before,
                max_tokens=max_tokens,
                sampling=self._sampling,
                interval=interval,
                stats=stats,
            )
            self._current = Generation(
                runs, self._codec, prompt_ids=self._before, stats=stats, stop=stops
            )
            return self._current

    def save(self, path: str | Path) -> None:
        """Write the token ids, their keys and values and the state of the sampler to a file.

        Raises:
            StoreError: The file cannot be written.
            GenerationError: An image of the sequence is forgotten.
        """
        from rdrr_runtime.backend import images_of
        from rdrr_runtime.images.saved import saved_images
        from rdrr_runtime.text.session_file import SavedSession, write_session

        target = local_path(path)
        with self._settled():
            seen = images_of(self._engine.backend)
            images = {} if seen is None else saved_images(seen, self._before)
            slots, cache = self._engine.save_cache(self._before)
            saved = SavedSession(list(self._before), slots, cache, asdict(self._sampling), images)
        write_session(target, saved, identity(self._package, self._engine))

    def _hold(self) -> None:
        """Keep the images of the sequence from being forgotten."""
        from rdrr_runtime.backend import images_of

        seen = images_of(self._engine.backend)
        known = [] if seen is None else [token for token in self._before if seen.knows(token)]
        self._images = [] if seen is None else seen.held(known)

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Close the running generation, and add its tokens to the sequence and to the sampler."""
        self._engine.lock.await_others()
        with self._changing:
            current, self._current = self._current, None
            if current is not None:
                current.close()
                self._before += current.token_ids
                sampled = self._sampling.sampled_tokens + len(current.token_ids)
                self._sampling = replace(self._sampling, sampled_tokens=sampled)
            yield


def restore(engine: Engine, codec: TextCodec, package: Package, path: Path) -> Session:
    """Return the session of a file, after its keys and values were written to the cache.

    Raises:
        StoreError: There is no such file.
        FormatError: The file is not a session, or belongs to another package or another data type
            of the cache.
        GenerationError: The session does not fit the context.
    """
    from rdrr_runtime.backend import images_of
    from rdrr_runtime.images.saved import restored_ids
    from rdrr_runtime.text.session_file import read_session

    saved = read_session(path, identity(package, engine))
    sampling = restored_sampling(saved.sampling, package.manifest.architecture.vocab_size, path)
    with engine.lock.exclusive():
        ids = restored_ids(images_of(engine.backend), saved.images, saved.ids)
    engine.load_cache(ids, saved.slots, saved.cache)
    return Session(engine, codec, package, sampling=sampling, ids=ids)


def restored_sampling(values: Mapping[str, object], vocab_size: int, path: Path) -> SamplingParams:
    """Return the sampling parameters of a session file.

    Args:
        values: The parameters in the file.
        vocab_size: Number of token ids of the model.
        path: The file, for messages.

    Raises:
        FormatError: They are not those that a session has.
    """
    from rdrr_runtime.sampling.params import SamplingParams

    try:
        given: dict[str, Any] = dict(values)
        given["logit_bias"] = {int(key): bias for key, bias in given["logit_bias"].items()}
        sampling = SamplingParams(**given)
        sampling.check_ids(vocab_size)
    except (TypeError, ValueError, KeyError, AttributeError, UsageError) as error:
        raise FormatError("not a saved session", where=path, found=error) from error
    return sampling


def identity(package: Package, engine: Engine) -> dict[str, str]:
    """Return what must be equal where a session is saved and where it is resumed."""
    manifest = package.manifest.model_dump_json(by_alias=True)
    return {
        "package": hashlib.sha256(manifest.encode("utf-8")).hexdigest(),
        "kvDtype": engine.backend.info.kv_dtype,
    }
