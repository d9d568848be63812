"""The most probable class and whether it came true, against the whole table, with ties."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical, Distribution, Independent

from credibly.distributions.entry import from_logits, from_probs
from credibly.distributions.mixture import MixturePredictive
from credibly.distributions.top_label import top_label


def check(d: Distribution, probs: torch.Tensor, targets: torch.Tensor) -> None:
    """Against numpy, whose argmax is the first largest."""
    confidence, hits = top_label(d, targets)
    table = probs.double().numpy()
    np.testing.assert_array_equal(hits.numpy(), table.argmax(-1) == targets.numpy())
    np.testing.assert_allclose(confidence.numpy(), table.max(-1), rtol=1e-6)
    assert confidence.dtype == torch.float64


@pytest.mark.parametrize("enter", ["probs", "logits", "mixture"])
def test_every_table_of_quarters_with_every_target(enter, dtype):
    """Every way in which three classes can tie, one-hot rows included."""
    rows = [row for row in product(range(5), repeat=3) if sum(row) == 4]
    probs = torch.tensor(rows, dtype=dtype).repeat_interleave(3, 0) / 4
    targets = torch.arange(3).repeat(len(rows))
    made = {
        "probs": lambda: from_probs(probs),
        "logits": lambda: from_logits(probs.log()),
        "mixture": lambda: MixturePredictive(Categorical(logits=probs.log().expand(2, -1, -1), validate_args=False)),
    }[enter]()
    check(made, probs, targets)


@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_random_tables_with_few_different_values(num_classes, seed, transposed):
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(1, 4, (30, num_classes), generator=generator).float()
    probs = (raw / raw.sum(-1, keepdim=True)).contiguous()
    targets = torch.randint(num_classes, (30,), generator=generator)
    check(from_probs(probs.T.contiguous().T if transposed else probs), probs, targets)


def test_several_binary_labels():
    probs = torch.tensor([[0.5, 0.2], [0.7, 0.5]])
    made = Independent(Bernoulli(probs=probs, validate_args=False), 1)
    targets = torch.tensor([[0, 1], [1, 1]])
    check(made, torch.stack([1 - probs, probs], -1), targets)
