"""How llama.cpp writes the checkpoints of one architecture, as rows of `gguf.architectures` say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.architectures.base import StackRule
from rdrr_converter.checkpoint.outgoing import OutgoingTensor, Stack
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.rank_head import RankForm
from rdrr_converter.gguf.settings import IGNORED_WINDOW, Config, Setting

Parts = tuple[LogicalTensor, ...]


@dataclass(frozen=True)
class GgufArchitecture:
    """How llama.cpp writes checkpoints of one architecture.

    Attributes:
        name: `general.architecture`.
        hf_class: The class that Hugging Face's configuration names.
        classes: Further classes whose checkpoints llama.cpp writes under this name.
        layer: Hugging Face's names of the modules of a layer, by llama.cpp's.
        interleaved: Modules whose rows alternate between the two halves of an attention head.
        norm_offset: Added to norm weights on reading; -1 where llama.cpp stores 1 + w.
        layer_norm: Whether the norms are LayerNorm, whose epsilon has a key of its own.
        dense_layers: Whether llama.cpp loads models in which only some layers have experts.
        flags: Keys of the configuration that follow from the tensors: the key, the last part of a
            tensor's Hugging Face name, and the value if there is such a tensor.
        per_layer: Metadata keys of sizes that may differ between layers.
        two_norms: `layer` for models whose parallel branches have a norm each, where it differs.
        shares_values: Whether the values of some layers may be their projected keys.
        plain_norms: Modules of norms to which `norm_offset` does not apply.
        outside: Hugging Face's names of the modules outside the layers, by llama.cpp's.
        biases: Whether llama.cpp loads biases of projections and convolutions.
        other_forms: Further names of modules, of stacks that only some files have.
        is_causal: Whether a token attends only to earlier ones in these files.
        whole: Hugging Face's names of tensors of a layer, with their endings, by llama.cpp's.
        in_metadata: A part of the names of tensors that a GGUF states in its metadata.
        left_out: A part of the names of tensors for which llama.cpp has no place.
        factors_in_weights: Whether the factors of the model are part of the weights.
        has_attention: Whether any layer has attention.
        rank: How llama.cpp computes the scores of a ranking model; None where it does not.
        has_draft_head: Whether llama.cpp loads the head for multi-token prediction.
        has_experts: Whether the models have experts, where llama.cpp gives those with experts
            another name than those without; None where it does not.
        has_betas: Whether llama.cpp reads the parameters `beta_fast` and `beta_slow` of YaRN.
        check: Refuses packages of which llama.cpp assumes something else.
        in_hf_form: Returns the tensors of a file in the form of Hugging Face, given those with its
            names, and the configuration.
        join: Joins further tensors that llama.cpp stores as one, on writing.
        plan: Plans a tensor that llama.cpp stores in another form, given the package, the names of
            Hugging Face and of llama.cpp, and its parts; None for any other tensor.
        further: Returns tensors that llama.cpp loads although the package has none.
        settings: What metadata and configuration state beyond the keys that all architectures have,
            in the order in which it is written.
    """

    name: str
    hf_class: str
    layer: Mapping[str, str] = field(default_factory=lambda: layer_names.LAYER)
    interleaved: tuple[str, ...] = ()
    norm_offset: float = 0.0
    classes: tuple[str, ...] = ()
    layer_norm: bool = False
    flags: tuple[tuple[str, str, bool], ...] = ()
    per_layer: tuple[str, ...] = ()
    shares_values: bool = False
    factors_in_weights: bool = False
    is_causal: bool = True
    dense_layers: bool = False
    plain_norms: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=lambda: layer_names.OUTSIDE)
    biases: bool = True
    other_forms: Mapping[str, str] = field(default_factory=lambda: layer_names.NO_FORMS)
    has_attention: bool = True
    whole: Mapping[str, str] = field(default_factory=lambda: layer_names.WHOLE)
    in_metadata: str | None = None
    left_out: str | None = None
    two_norms: Mapping[str, str] | None = None
    has_draft_head: bool = False
    rank: RankForm | None = None
    has_experts: bool | None = None
    has_betas: bool = False
    check: Callable[[Package], None] = lambda _package: None
    in_hf_form: Callable[[Iterable[SourceTensor], Config], Iterable[SourceTensor]] = (
        lambda tensors, _config: tensors
    )
    join: Callable[[Sequence[Stack]], Sequence[Stack]] = lambda stacks: stacks
    plan: Callable[[Package, str, str, Parts], OutgoingTensor | None] = lambda *_: None
    further: Callable[[Package], Mapping[str, npt.NDArray[Any]]] = lambda _package: {}
    settings: tuple[Setting, ...] = (IGNORED_WINDOW,)

    def for_tensors(self, names: Iterable[str]) -> GgufArchitecture:
        """Return this row for a model with these tensors, in llama.cpp's names or the other."""
        endings = (".attn_norm_2.weight", ".post_attention_layernorm.weight")
        if self.two_norms is None or not any(name.endswith(endings) for name in names):
            return self
        return replace(self, layer=self.two_norms, two_norms=None)

    def stated_by(self, names: Iterable[str]) -> dict[str, bool]:
        """Return the keys of the configuration that follow from the tensors' Hugging Face names."""
        known = tuple(names)
        shared = {"attention_k_eq_v": _shares_values(known)} if self.shares_values else {}
        return shared | {
            key: value == any(name.endswith(part) for name in known)
            for key, part, value in self.flags
        }

    def stores(self, stack: StackRule) -> bool:
        """Return whether llama.cpp stores a stack, and not its parts."""
        names = (stack.name, stack.parts[0])
        whole, part = (self.llama_name(name.format(layer=0, expert=0)) for name in names)
        return whole is not None and (part is None or stack.is_published)

    def translate(self, name: str) -> str:
        """Return the Hugging Face name of a tensor; an unknown name is returned unchanged."""
        stem, _, ending = name.rpartition(".")
        of_layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if of_layer is not None and of_layer[2] in self.whole:
            return f"model.layers.{of_layer[1]}.{self.whole[of_layer[2]]}"
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        if match is None:
            return f"{self.outside[stem]}.{ending}" if stem in self.outside else name
        part = self._part(match[2])
        if part is not None and part.endswith("_bias"):  # a name without ending
            return f"model.layers.{match[1]}.{part}"
        return name if part is None else f"model.layers.{match[1]}.{part}.{ending}"

    def llama_name(self, name: str) -> str | None:
        """Return llama.cpp's name of a tensor, given its Hugging Face name; None if it has none."""
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        whole = None if layer is None else _theirs(self.whole, layer[2])
        if layer is not None and whole is not None:
            return f"blk.{layer[1]}.{whole}"
        stem, _, ending = name.rpartition(".")
        if ending not in ("weight", "bias"):  # sinks and biases of routers have no such ending
            stem, ending = name, "bias" if name.endswith("_bias") else "weight"
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        names, part = (self.outside, stem) if match is None else (self.layer, match[2])
        named = _theirs(names, part)
        if named is None or (name.endswith(".bias") and not self.biases):
            return None
        return f"{named}.{ending}" if match is None else f"blk.{match[1]}.{named}.{ending}"

    def _part(self, theirs: str) -> str | None:
        """Return Hugging Face's name of a module; the oldest files have one tensor per expert."""
        alone = re.fullmatch(r"(ffn_(?:gate|up|down))\.(\d+)", theirs)
        if alone is None:
            return self.layer.get(theirs) or self.other_forms.get(theirs)
        stem, _, kind = self.layer.get(f"{alone[1]}_exps", "").rpartition(".")
        return f"{stem}.{alone[2]}.{kind}" if stem else None

    def offset_of(self, name: str) -> float:
        """Return what is added on reading to a tensor of this Hugging Face name."""
        is_norm = name.endswith("norm.weight") and not self.is_plain_norm(name)
        return self.norm_offset if is_norm else 0.0

    def is_plain_norm(self, name: str) -> bool:
        """Return whether `norm_offset` does not apply to the norm of this Hugging Face name."""
        return name.removesuffix(".weight").endswith(self.plain_norms)

    def is_interleaved(self, name: str) -> bool:
        """Return whether llama.cpp interleaves the rows of a tensor of this Hugging Face name."""
        return any(f".{part}." in name for part in self.interleaved)


def _theirs(names: Mapping[str, str], name: str) -> str | None:
    """Return llama.cpp's name of what Hugging Face has under another; None if it has none."""
    return next((theirs for theirs, ours in names.items() if ours == name), None)


def _shares_values(names: tuple[str, ...]) -> bool:
    """Return whether some layers have a projection of keys and none of values."""
    keys, values = (
        sum(name.endswith(f".self_attn.{part}_proj.weight") for name in names) for part in "kv"
    )
    return values < keys
