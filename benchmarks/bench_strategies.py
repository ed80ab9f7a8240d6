"""Compare decoding strategies of one package: WeDLM, speculative and plain greedy decoding.

    python benchmarks/bench_strategies.py PACKAGE --tau 0.4,0.6 --draft ngram --draft SMALLER

WeDLM fills several positions per pass where the continuation is nearly certain, so two prompts are
measured: `plain`, and `low-entropy`, whose continuation a model trained on manual pages has
memorized. `--prompt` takes one of these names or any text.

The strategies alternate in one process. Each gets the same prompt and generates the same number of
tokens; no stop token ends a sequence early. A time ends with the last ids. A strategy that submits
passes ahead may have submitted some in vain; the next generation waits until they are done. There
are two baselines: greedy decoding with a key-value cache and eight tokens per readback (`ar`), and
greedy decoding without a cache (`uncached`), which the published speed-up of WeDLM refers to. Times
include the prefill.

Passes over several rows are timed as well and compared with the pass of one token, both with their
readbacks: a strategy pays off if its tokens per pass exceed that ratio. WeDLM needs a package of a
model that was trained for it; otherwise it is omitted.

A strategy may generate other ids than `ar`. `agrees` is the fraction of ids before the first
difference; the longest run of one id and `repeats`, the fraction of 4-grams that occurred before,
show whether the text repeats itself. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdrr_device.device import Device
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.strategy import Strategy
    from rdrr_runtime.draft_backend import DraftHead
    from rdrr_runtime.engine import Engine


@dataclass(frozen=True)
class Prompt:
    """A prompt and how many tokens to generate after it.

    Attributes:
        text: Text of the prompt.
        tokens: Number of tokens to generate.
    """

    text: str
    tokens: int = 128


PROMPTS = MappingProxyType(
    {
        "plain": Prompt("In the beginning God created the heaven and the earth. " * 8),
        "low-entropy": Prompt(
            "RETURN VALUE\n"
            "       On success, zero is returned.  On error, -1 is returned, and errno is set to "
            "indicate the error.\n\n"
            "ATTRIBUTES\n"
            "       For  an  explanation",
            tokens=24,  # the rest of the sentence, which is the same in every manual page
        ),
    }
)
ROWS = (1, 2, 4, 8, 16, 32)  # token rows of the timed passes
PASSES = 20  # passes of each size per round


def compare_ids(ids: Sequence[int], plain: Sequence[int]) -> dict[str, float]:
    """Compare ids with those of plain decoding, and measure how much they repeat themselves."""
    pairs = zip(ids, plain, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(plain)))
    run = longest = 1
    for before, after in pairwise(ids):
        run = run + 1 if before == after else 1
        longest = max(longest, run)
    fours = [tuple(ids[at : at + 4]) for at in range(len(ids) - 3)]
    repeats = 1 - len(set(fours)) / len(fours) if fours else 0.0
    return {"agrees": same / max(1, len(ids)), "longest_run": longest, "repeats": repeats}


def generate(
    engine: Engine, strategy: Strategy, prompt: Sequence[int], tokens: int
) -> tuple[list[int], dict[str, Any]]:
    """Generate once from an empty cache; return the ids and the statistics."""
    from rdrr_runtime.decode.stats import GenerationStats

    stats = GenerationStats()
    with engine.lend():
        pass  # forgets the cached sequence, so that each generation runs its prompt
    runs = engine.generate(prompt, max_tokens=tokens, stats=stats, strategy=strategy)
    ids = [token_id for run in runs for token_id in run]
    return ids, stats.as_dict()


def measure_strategies(
    engine: Engine,
    strategies: Mapping[str, Strategy],
    prompt: Sequence[int],
    tokens: int,
    rounds: int,
    settle: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Measure all strategies alternately, after one round of warm-up; return their figures.

    Args:
        engine: The package.
        strategies: Strategies by name, among them `ar` and `uncached`.
        prompt: Ids of the prompt.
        tokens: Tokens to generate.
        rounds: Rounds to measure.
        settle: Waits until the device is idle.
    """
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    last: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for index in range(rounds + 1):
        for name, strategy in strategies.items():
            settle()
            last[name] = generate(engine, strategy, prompt, tokens)
            if index:
                seconds[name].append(last[name][1]["total_ms"] / 1e3)
    figures = {}
    for name, (ids, stats) in last.items():
        ratios = {
            f"over_{base}": median(
                [a / b for a, b in zip(seconds[base], seconds[name], strict=True)]
            )
            for base in ("ar", "uncached")
        }
        counted = (
            "forwards",
            "wasted_forwards",
            "tokens_per_forward",
            "rows",
            "wasted_rows",
            "drafted",
            "accepted",
            "readbacks",
        )
        figures[name] = {
            "tokens": len(ids),
            "seconds": [min(seconds[name]), median(seconds[name]), max(seconds[name])],
            "tokens_per_second": len(ids) / median(seconds[name]),
            **{key: stats[key] for key in counted},
            **ratios,
            **compare_ids(ids, last["ar"][0]),
        }
    return figures


def measure_passes(backend: Backend, prompt: Sequence[int], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a pass by its number of rows.

    The key `decode` is the pass that decodes one token.
    """
    base = len(prompt)
    backend.fill(prompt, 0)
    passes: dict[str, Callable[[], object]] = {
        "decode": lambda: backend.greedy(prompt[-1:], base, 1)
    }
    for rows in ROWS:
        ids = [prompt[at % len(prompt)] for at in range(rows)]
        passes[str(rows)] = lambda ids=ids: backend.window_picks(  # type: ignore[misc]
            ids, base, last_n=-(-len(ids) // 2)
        )
    times: dict[str, list[float]] = {name: [] for name in passes}
    for index in range(rounds + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            for _ in range(PASSES):
                run()
            if index:
                times[name].append((time.perf_counter() - start) * 1e3 / PASSES)
    return {name: median(milliseconds) for name, milliseconds in times.items()}


@dataclass(frozen=True)
class NoOtherModels:
    """The models that a WeDLM strategy may use: the package alone, no draft model."""

    package: Package

    def get(self, path: str | Path) -> Backend:
        """Refuse to load another model."""
        raise SystemExit(f"{path}: this strategy does not use another model")

    def draft_head(self) -> tuple[Backend, DraftHead]:
        """Refuse to load a draft head."""
        raise SystemExit("this strategy does not use a draft head")


def wedlm_strategies(package: Package, taus: Sequence[str], window: int) -> dict[str, Strategy]:
    """Return WeDLM at each threshold, or nothing if the package does not support it."""
    from rdrr import UsageError, Wedlm

    strategies: dict[str, Strategy] = {}
    for word in taus:
        tau = None if word == "none" else float(word)
        try:
            strategy = Wedlm(window=window, tau=tau).strategy(NoOtherModels(package))
        except UsageError as error:
            print(f"wedlm is omitted: {error}")
            return {}
        strategies[f"wedlm tau {word}"] = strategy
    return strategies


def draft_strategies(
    package: Package, device: Device, drafts: Sequence[str], context: int, stack: ExitStack
) -> dict[str, Strategy]:
    """Return speculative decoding with each draft: `ngram` or the path of a package.

    Raises:
        SystemExit: A draft model has another vocabulary.
    """
    from rdrr_manifests.package import open_package
    from rdrr_runtime.decode.drafts import Draft, ModelDraft, NgramDraft
    from rdrr_runtime.decode.speculative import SpeculativeDecoding
    from rdrr_runtime.gpu import GpuBackend

    strategies: dict[str, Strategy] = {}
    for name in drafts:
        draft: Draft = NgramDraft()
        if name != "ngram":
            smaller = open_package(name)
            sizes = {model.manifest.architecture.vocab_size for model in (package, smaller)}
            if len(sizes) > 1:
                raise SystemExit(
                    f"{name}: the draft model has another vocabulary size than the package"
                )
            backend = GpuBackend(smaller, context=context, device=device)
            stack.callback(backend.close)
            draft = ModelDraft(backend)
        strategies[f"draft {Path(name).name}"] = SpeculativeDecoding(draft)
    return strategies


def select_prompts(words: Sequence[str], tokens: int | None) -> dict[str, Prompt]:
    """Return the prompts to measure.

    Args:
        words: Names of prompts, or texts; all named prompts when empty.
        tokens: Tokens to generate; when None, the number of each prompt.
    """
    prompts = {word: PROMPTS.get(word, Prompt(word)) for word in words or PROMPTS}
    return {
        name: prompt if tokens is None else replace(prompt, tokens=tokens)
        for name, prompt in prompts.items()
    }


def show(prompt: str, strategies: Mapping[str, Any]) -> None:
    """Print the table of the strategies for one prompt."""
    print(f"prompt: {prompt}")
    head = (
        "strategy",
        "tok/s",
        "tok/pass",
        "x ar",
        "x uncached",
        "wasted",
        "agrees",
        "run",
        "repeats",
    )
    print("{:<22}{:>9}{:>10}{:>8}{:>12}{:>8}{:>8}{:>5}{:>9}".format(*head))
    for name, figures in strategies.items():
        print(
            f"{name:<22}{figures['tokens_per_second']:>9.1f}{figures['tokens_per_forward']:>10.2f}"
            f"{figures['over_ar']:>8.2f}{figures['over_uncached']:>12.2f}{figures['wasted_rows']:>8}"
            f"{figures['agrees']:>8.2f}{figures['longest_run']:>5}{figures['repeats']:>9.2f}"
        )


def show_passes(passes: Mapping[str, float]) -> None:
    """Print the table of the passes."""
    for name, milliseconds in passes.items():
        ratio = milliseconds / passes["decode"]
        print(f"pass of {name:<8}{milliseconds:>9.3f} ms{ratio:>7.2f} x decode")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="folder of a package")
    parser.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="NAME|TEXT",
        help="plain, low-entropy or any text; may be repeated",
    )
    parser.add_argument(
        "--tokens", type=int, help="tokens to generate, instead of the number of each prompt"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds to measure")
    parser.add_argument("--tau", default="0.4,0.6,none", help="entropy thresholds of WeDLM")
    parser.add_argument("--window", type=int, default=16, help="window of WeDLM, in tokens")
    parser.add_argument(
        "--draft",
        action="append",
        default=[],
        metavar="PATH|ngram",
        help="draft of speculative decoding; may be repeated",
    )
    parser.add_argument("--adapter", help="use the adapter whose name contains this")
    options = parser.parse_args()

    from published.strategies.uncached import Uncached
    from rdrr_device.device import open_device
    from rdrr_manifests.package import open_package
    from rdrr_runtime.decode.autoregressive import Autoregressive
    from rdrr_runtime.engine import Engine
    from rdrr_runtime.gpu import GpuBackend
    from rdrr_runtime.text.tokenizer import TextCodec

    with ExitStack() as stack:
        device = open_device(options.adapter)
        stack.callback(device.close)
        package = open_package(options.package)
        codec = TextCodec(package.tokenizer_bytes() or b"")
        prompts = select_prompts(options.prompt, options.tokens)
        ids = {name: codec.encode(prompt.text) for name, prompt in prompts.items()}
        longest = max(len(ids[name]) + prompt.tokens for name, prompt in prompts.items())
        context = longest + 2 * max(ROWS)
        backend = GpuBackend(package, context=context, device=device)
        stack.callback(backend.close)
        strategies: dict[str, Strategy] = {"ar": Autoregressive(), "uncached": Uncached()}
        strategies |= wedlm_strategies(package, options.tau.split(","), options.window)
        strategies |= draft_strategies(package, device, options.draft, context, stack)
        engine = Engine(backend, (), package.manifest.architecture.vocab_size)
        measurements = {
            name: measure_strategies(
                engine, strategies, ids[name], prompt.tokens, options.rounds, device.wait
            )
            for name, prompt in prompts.items()
        }
        passes = measure_passes(backend, next(iter(ids.values())), options.rounds)
    for name, measured in measurements.items():
        show(name, measured)
    show_passes(passes)
    record = {
        "package": package.manifest.model_id,
        "adapter": device.info.name,
        "prompts": {
            name: {"prompt_tokens": len(ids[name]), "strategies": measured}
            for name, measured in measurements.items()
        },
        "pass_ms": passes,
        "pass_of_16_over_decode": passes["16"] / passes["decode"],
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
