"""Rules that architectures with a selective state space share: Mamba 2 and the hybrids of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf, isinf
from typing import Any

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures.base import Block, Keys, StackRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.tensors import bias, norm, projection

STATE_SPACE, FEED_FORWARD = "state_space", "feed_forward"

_MIXER = "model.layers.{layer}.mamba"
_PARTS = tuple(f"{_MIXER}.in_proj_{part}" for part in ("z", "xbc", "dt"))


@dataclass(frozen=True)
class StateSpaceKeys:
    """The keys of a configuration that describe the state space.

    Attributes:
        heads: Number of heads.
        head_dim: Width of a head, or `auto`.
        groups: Groups of heads that share B and C.
        state: Elements of B and C.
        kernel: Taps of the convolution.
        expand: Width of all heads over the hidden size; empty if nothing states it.
        activation: Activation after the convolution.
        conv_bias: Whether the convolution has a bias.
        bias: Whether the projections have biases.
        width: Key of the width of all heads, which takes precedence over `expand`; empty for none.
    """

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    kernel: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    activation: str = "hidden_act"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    width: str = ""

    def inner(self, config: Config) -> int:
        """Return the width of all heads.

        Raises:
            SourceError: A number is invalid, the heads do not add up, or the convolution has
                another activation than SiLU.
        """
        heads, stated = config.integer(self.heads), config.get(self.head_dim)
        width = config.get(self.width) if self.width else None
        if self.expand:
            factor = config.number(self.expand)  # read in any case, like transformers
            whole = factor * config.integer("hidden_size")
            if width is None and abs(whole - round(whole)) > 1e-6:
                raise config.fault(self.expand, "a multiple of 1 / hidden_size", factor)
            width = round(whole) if width is None else width
        if width is None:
            width = heads * config.integer(self.head_dim)
        head_width = width // heads if stated in (None, "auto") else stated
        if type(head_width) is not int or heads * head_width != width:
            raise config.fault(self.head_dim, f"{width} over {heads} heads", stated)
        activation = config.get(self.activation)
        if activation not in ("silu", "swish"):
            raise config.fault(self.activation, "silu", activation)
        return width

    def sizes(self) -> Block:
        """Return the fields of the block `architecture`."""
        return {
            "ssm_num_heads": read.integer(self.heads),
            "ssm_head_dim": lambda config: self.inner(config) // config.integer(self.heads),
            "ssm_num_groups": read.integer(self.groups),
            "ssm_state_size": read.integer(self.state),
            "ssm_conv_kernel_dim": read.integer(self.kernel),
        }

    def exported(self, manifest: Manifest) -> Keys:
        """Return the keys of the state space; none if no layer has one."""
        sizes, block = manifest.architecture, manifest.inference.state_space
        if block is None or sizes.ssm_num_heads is None or sizes.ssm_head_dim is None:
            return {}
        width = sizes.ssm_num_heads * sizes.ssm_head_dim
        keys: dict[str, Any] = {
            self.heads: sizes.ssm_num_heads,
            self.head_dim: sizes.ssm_head_dim,
            self.groups: sizes.ssm_num_groups,
            self.state: sizes.ssm_state_size,
            self.kernel: sizes.ssm_conv_kernel_dim,
        }
        if block.least_step or block.most_step is not None:  # JSON has no infinity
            most = {"__float__": "Infinity"} if block.most_step is None else block.most_step
            keys["time_step_limit"] = [block.least_step, most]
        if self.expand and not self.width:
            factor = width / sizes.hidden_size
            keys[self.expand] = int(factor) if factor == int(factor) else factor
        return keys

    def dimensions(self) -> Mapping[str, Callable[[Config], int]]:
        """Return the words for the shapes of `tensors`."""
        return {
            "ssm_inner": self.inner,
            "ssm_heads": read.integer(self.heads),
            "ssm_taps": read.integer(self.kernel),
            "ssm_channels": self._channels,
        }

    def _channels(self, config: Config) -> int:
        shared = config.integer(self.groups) * config.integer(self.state)
        return self.inner(config) + 2 * shared

    def tensors(
        self, *, gated_norm: bool | Callable[[Config], bool] = True, out_bias: str = ""
    ) -> tuple[TensorRule, ...]:
        """Return the tensors of a layer's state space.

        Args:
            gated_norm: Whether the output has a norm beside its gate.
            out_bias: Key that says whether the last projection has a bias, if it is another one.
        """
        flag, out_flag = read.flag(self.bias), read.flag(out_bias or self.bias)
        return (
            projection("mamba.in_proj_z", "ssm_inner", "hidden"),
            projection("mamba.in_proj_xbc", "ssm_channels", "hidden"),
            projection("mamba.in_proj_dt", "ssm_heads", "hidden"),
            bias("mamba.in_proj_z", "ssm_inner", flag),
            bias("mamba.in_proj_xbc", "ssm_channels", flag),
            bias("mamba.in_proj_dt", "ssm_heads", flag),
            TensorRule(f"{_MIXER}.conv1d.weight", "conv", ("ssm_channels", "one", "ssm_taps")),
            bias("mamba.conv1d", "ssm_channels", read.flag(self.conv_bias)),
            TensorRule(f"{_MIXER}.A_log", "other", ("ssm_heads",)),
            TensorRule(f"{_MIXER}.dt_bias", "other", ("ssm_heads",)),
            TensorRule(f"{_MIXER}.D", "other", ("ssm_heads",)),
            norm("mamba.norm", "ssm_inner", required=gated_norm),
            projection("mamba.out_proj", "hidden", "ssm_inner"),
            bias("mamba.out_proj", "hidden", out_flag),
        )


def input_stacks(mixer: str = _MIXER) -> tuple[StackRule, ...]:
    """Return the projection of gates, inputs and steps, and its bias, which are stored as one.

    Args:
        mixer: Name of the state space in checkpoints; a GGUF is read with the usual name.
    """
    return tuple(
        StackRule(
            f"{name}.in_proj.{kind}",
            tuple(f"{part}.{kind}" for part in _PARTS),
            is_published=name == mixer,
        )
        for name in dict.fromkeys((mixer, _MIXER))
        for kind in ("weight", "bias")
    )


def mixer_names(mixer: str) -> dict[str, str]:
    """Return the names of a state space's modules for `layer_names`."""
    parts = ("", ".conv1d", ".norm", ".out_proj")
    return {f"mamba{part}": f"{mixer}{part}" for part in parts}


def step_limits(config: Config) -> tuple[float, float | None]:
    """Return the limits of steps in `time_step_limit`; the upper one may be infinite.

    Raises:
        SourceError: They are no two numbers in order.
    """
    stated = config.get("time_step_limit")
    if stated is None:
        return 0.0, None
    limits = [_number(limit) for limit in stated] if isinstance(stated, (list, tuple)) else []
    if len(limits) != 2 or None in limits:
        raise config.fault("time_step_limit", "two numbers", stated)
    least, most = (float(limit or 0.0) for limit in limits)
    if not 0.0 <= least < most:
        raise config.fault("time_step_limit", "two numbers from 0 on, in order", stated)
    return least, None if isinf(most) else most


def _number(value: object) -> float | None:
    """Return a number, which JSON may hold as an object if it is infinite; None if it is none."""
    if isinstance(value, Mapping):
        value = inf if value.get("__float__") == "Infinity" else None
    return float(value) if isinstance(value, (int, float)) else None


STEP_LIMITS: Block = {
    "least_step": lambda config: step_limits(config)[0],
    "most_step": lambda config: step_limits(config)[1],
}
"""Fields of the block `inference.stateSpace`."""


def of_type(
    types: Callable[[Config], tuple[str, ...]], kind: str
) -> Callable[[Config], Collection[int]]:
    """Return the rule for the layers of one type, given the rule for all types."""
    return lambda config: [at for at, layer_type in enumerate(types(config)) if layer_type == kind]
