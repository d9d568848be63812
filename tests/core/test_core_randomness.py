"""Random streams: a draw is the same numbers whatever is drawn beside it, and the global state is left as found."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from credibly.core.randomness import Stream, base_seed, derived_seed, seeded

SEEDS = st.integers(-(2**40), 2**70)


@given(seed=SEEDS, first=st.integers(0, 30), length=st.integers(0, 12), size=st.integers(0, 40))
def test_a_draw_does_not_depend_on_the_range_it_is_made_in(seed, first, length, size):
    stream = Stream(seed, "weights")
    whole = stream.normal(size, 0, first + length, torch.float64)
    assert torch.equal(stream.normal(size, first, first + length, torch.float64), whole[first:])
    one_by_one = [Stream(seed, "weights").normal(size, k, k + 1, torch.float64) for k in range(first, first + length)]
    assert torch.equal(torch.cat([*one_by_one, whole[:0]]), whole[first:])


@pytest.mark.parametrize("method", ["uniform", "normal"])
def test_draws_streams_and_seeds_differ(method, dtype, device):
    def draws(seed, name):
        return getattr(Stream(seed, name, device), method)(64, 0, 50, dtype)

    tables = [draws(0, "masks"), draws(0, "weights"), draws(1, "masks")]
    rows = torch.cat(tables).cpu()
    assert rows.dtype == dtype
    assert len(torch.unique(rows, dim=0)) == 150
    # uncorrelated: 11,175 pairs of rows of 64 numbers, the largest beyond 0.67 once in 10^6
    assert (torch.corrcoef(rows) - torch.eye(150, dtype=dtype)).abs().max() < 0.67


def test_the_numbers_have_their_law():
    uniform = Stream(3, "masks").uniform(500, 0, 100, torch.float64).flatten().numpy()
    normal = Stream(3, "weights").normal(500, 0, 100, torch.float64).flatten().numpy()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    # each fails once in 10^6
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    assert stats.kstest(normal, "norm").pvalue > 1e-6


def test_no_two_of_many_draws_collide_in_the_32_bits_that_the_cpu_keeps():
    stream = Stream(0, "masks")
    seeds = {stream.generator(index).initial_seed() for index in range(20_000)}
    assert len(seeds) == 20_000
    assert max(seeds) < 2**32


def test_a_seed_below_and_above_the_range_of_the_generator_is_fine():
    for seed in (-5, 0, 2**63, 2**100):
        assert 0 <= derived_seed(seed, "init") < 2**62
        with seeded(seed, "init", device="cpu"):
            torch.rand(1)


def test_seeded_repeats_and_restores_the_global_state():
    before = torch.get_rng_state()
    with seeded(5, "init", device="cpu"):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(5, "init", device="cpu"):
        assert torch.equal(torch.rand(3), first)
    for other in ((6, "init"), (5, "order"), (5, "init", 1)):
        with seeded(*other, device="cpu"):
            assert not torch.equal(torch.rand(3), first)


def test_seeded_restores_the_global_state_after_an_exception_and_when_nested():
    before = torch.get_rng_state()

    def fail():
        with seeded(5, "init", device="cpu"):
            torch.rand(3)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(5, "init", device="cpu"):
        expected = torch.rand(2)
    with seeded(5, "init", device="cpu"):
        with seeded(9, "inner", device="cpu"):
            torch.rand(7)
        assert torch.equal(torch.rand(2), expected)


def test_streams_do_not_touch_the_global_state():
    before = torch.get_rng_state()
    Stream(0, "masks").uniform(5, 0, 3)
    derived_seed(0, "x")
    base_seed(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_one_is_taken_from_the_global_generator():
    torch.manual_seed(1)
    first = base_seed(None)
    second = base_seed(None)
    torch.manual_seed(1)
    assert first != second
    assert base_seed(None) == first


def test_numpys_integers_are_seeds_and_other_things_are_not():
    assert base_seed(np.int64(7)) == 7
    assert type(base_seed(np.int64(7))) is int
    for wrong in (1.0, "1", True, np.float32(2)):
        with pytest.raises(TypeError, match="`seed` must be an integer or None"):
            base_seed(wrong)
