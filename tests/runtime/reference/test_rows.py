"""Ops on rows whose results may not depend on the order in which a device adds up."""

from __future__ import annotations

import numpy as np
import torch
from rdrr_runtime.reference.rows import embed, sampled


def test_tokens_come_as_often_as_they_are_probable(rng):
    logits = torch.from_numpy(rng.standard_normal((1, 6)).astype(np.float32))
    logits[0, 4] = -torch.inf
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    tokens = sampled(logits.expand(20_000, -1), generator)
    shares = torch.bincount(tokens[:, 0], minlength=6) / len(tokens)
    assert tokens.shape == (20_000, 1)
    assert shares[4] == 0
    # Five standard deviations of a share.
    assert (shares - torch.softmax(logits[0], 0)).abs().max() < 5 * 0.5 / 20_000**0.5


def test_a_token_without_a_rival_is_always_chosen_even_the_last():
    logits = torch.full((64, 8), -torch.inf)
    logits[:, 7] = 0
    assert (sampled(logits, torch.Generator().manual_seed(0)) == 7).all()


def test_gradients_of_a_table_are_sums_over_equal_tokens(rng):
    table = torch.from_numpy(rng.standard_normal((5, 3)).astype(np.float32)).requires_grad_()
    tokens = torch.tensor([1, 4, 1, 9])  # the last is beyond the table
    embed(tokens, table, 2.0).sum().backward()
    assert table.grad[:, 0].tolist() == [2.0, 4.0, 0.0, 0.0, 2.0]
