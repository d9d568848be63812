"""Standardisation against scikit-learn, and where there is nothing to scale."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.preprocessing import StandardScaler

from credibly.core.errors import NotFiniteError, ShapeError
from credibly.standardization import (
    InputsStandardization,
    Standardization,
    Standardize,
    fit_inputs,
)


def data(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (values * torch.arange(1, shape[-1] + 1) + 100).to(dtype)


def test_the_transform_is_scikit_learns(dtype):
    values = data(50, 4, dtype=dtype)
    scaler = StandardScaler().fit(values.double().numpy())
    fitted = Standardize().fit(values)
    assert fitted.loc.dtype == dtype
    np.testing.assert_allclose(fitted.loc.double(), scaler.mean_, rtol=1e-6)
    np.testing.assert_allclose(fitted.scale.double(), scaler.scale_, rtol=1e-6)
    np.testing.assert_allclose(fitted(values).double(), scaler.transform(values.double().numpy()), atol=2e-4)
    assert fitted(values).dtype == dtype


def test_a_vector_of_targets_has_one_scale(dtype):
    values = data(30, 1, dtype=dtype).squeeze(1)
    fitted = Standardize().fit(values)
    assert fitted.loc.shape == ()
    torch.testing.assert_close(fitted(values).mean(), torch.zeros((), dtype=dtype), atol=1e-4, rtol=0)
    torch.testing.assert_close(fitted(values).std(correction=0), torch.ones((), dtype=dtype), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [[50], [10, 40], [1] * 50, [0, 17, 33, 0]])
def test_batches_give_what_the_whole_gives(sizes):
    values = data(50, 3) + 1e6
    whole = Standardize().fit(values)
    parts = Standardize().fit(iter(values.split(sizes)))
    torch.testing.assert_close(parts.loc, whole.loc, rtol=1e-14, atol=0)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(whole.scale, values.std(0, correction=0), rtol=1e-9, atol=0)


def test_images_are_standardised_per_channel():
    values = data(6, 3, 4, 5) * torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1)
    fitted = Standardize(axes=(0, 2, 3)).fit(values)
    assert fitted.loc.shape == (3, 1, 1)
    out = fitted(values)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(fitted(values[:1]), out[:1])
    parts = Standardize(axes=(0, 2, 3)).fit(iter(values.split([1, 5])))
    torch.testing.assert_close(parts.scale, fitted.scale)
    torch.testing.assert_close(Standardize(axes=(0, -1, -2)).fit(values).scale, fitted.scale)


def test_the_rows_are_always_averaged():
    with pytest.raises(ValueError, match=r"`axes` must hold 0, the rows; got \(1,\)"):
        Standardize(axes=(1,))


# -- nothing to scale ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5], [0.5], [0.1] * 7, [1e8 + 0.1] * 3, [-3e-9] * 11, [0.0, 0.0]])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_constant_becomes_zero_and_comes_back_exact(values, batches, dtype):
    targets = torch.tensor(values, dtype=dtype)
    with pytest.warns(UserWarning, match="1 of 1 columns of `targets` are constant: their scale is taken as 1"):
        fitted = Standardize().fit(iter(targets.chunk(batches)), name="targets")
    assert float(fitted.scale) == 1
    assert torch.equal(fitted(targets), torch.zeros_like(targets))
    assert torch.equal(fitted.inverse(fitted(targets)), targets)


def test_one_constant_column_leaves_the_others_alone():
    values = data(20, 3)
    values[:, 1] = 0.1
    with pytest.warns(UserWarning, match="1 of 3 columns"):
        fitted = Standardize().fit(values)
    assert fitted.scale[1] == 1
    torch.testing.assert_close(fitted.scale[[0, 2]], values[:, [0, 2]].std(0, correction=0))


def test_rounding_about_a_constant_is_a_constant():
    values = torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    with pytest.warns(UserWarning, match="constant"):
        fitted = Standardize().fit(values)
    assert fitted(values).abs().max() < 1e-15


def test_a_spread_too_small_for_the_dtype_is_a_constant():
    values = torch.zeros(1000)
    values[0] = 1.4e-45
    with pytest.warns(UserWarning, match="constant"):
        assert Standardize().fit(values).scale == 1


@pytest.mark.parametrize("values", [torch.empty(0), torch.empty(0, 3), []])
def test_nothing_at_all_is_an_error(values):
    with pytest.raises(ShapeError, match="`targets` is empty; at least one row is needed"):
        Standardize().fit(values, name="targets")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_name(bad):
    with pytest.raises(NotFiniteError, match="`inputs` must be finite; 1 of 3"):
        Standardize().fit(torch.tensor([1.0, bad, 2.0]), name="inputs")


@pytest.mark.filterwarnings("ignore:.*are constant")
@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=st.floats(-1e6, 1e6)),
    st.integers(1, 5),
)
def test_the_transform_is_finite_and_invertible_for_any_data(values, batches):
    tensor = torch.from_numpy(values)
    fitted = Standardize().fit(iter(tensor.chunk(batches)))
    out = fitted(tensor)
    assert out.isfinite().all()
    # at n rows no value is farther than sqrt(n - 1) standard deviations from the mean
    assert out.abs().max() <= max(len(values) - 1, 0) ** 0.5 * (1 + 1e-6) + 1e-6
    torch.testing.assert_close(fitted.inverse(out), tensor, rtol=1e-12, atol=1e-9)


# -- the fitted map ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loc", "scale", "error", "message"),
    [
        (torch.zeros(2), torch.ones(3), ShapeError, r"got \(2,\) and \(3,\)"),
        (torch.zeros(2), torch.tensor([1.0, 0.0]), ValueError, "above 0"),
        (torch.zeros(()), torch.tensor(-1.0), ValueError, "above 0"),
        (torch.zeros(()), torch.tensor(float("inf")), ValueError, "finite"),
        (torch.tensor(float("nan")), torch.tensor(1.0), ValueError, "finite"),
    ],
)
def test_a_transform_that_makes_no_sense_is_refused(loc, scale, error, message):
    with pytest.raises(error, match=message):
        Standardization(loc, scale)


def test_a_transform_keeps_its_own_numbers_and_moves_with_its_module():
    loc, scale = torch.zeros(2), torch.ones(2)
    fitted = Standardization(loc, scale)
    loc.add_(5)
    assert fitted.loc.tolist() == [0, 0]
    assert fitted.double().scale.dtype == torch.float64
    assert list(fitted.parameters()) == []
    assert fitted.same_as(copy.deepcopy(fitted))
    assert not fitted.same_as(Standardization(torch.ones(2), scale))
    assert not fitted.same_as(None)
    assert Standardization(1.0, 2.0).inverse(torch.tensor(3.0)) == 7


# -- several inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict, tuple])
def test_parts_of_several_inputs_are_standardised_by_key(kind):
    x, other = data(20, 3), torch.arange(20)
    keys = ("x", "other") if kind is dict else (0, 1)
    inputs = {"x": x, "other": other} if kind is dict else (x, other)
    halves = [
        {key: value[rows] for key, value in inputs.items()} if kind is dict else tuple(v[rows] for v in inputs)
        for rows in (slice(0, 5), slice(5, 20))
    ]
    fitted = fit_inputs({keys[0]: Standardize()}, iter(halves))
    assert isinstance(fitted, InputsStandardization)
    out = fitted(inputs)
    assert type(out) is kind
    torch.testing.assert_close(out[keys[0]], Standardize().fit(x)(x))
    assert out[keys[1]] is other
    assert fitted.same_as(copy.deepcopy(fitted))
    assert not fitted.same_as(fit_inputs({keys[1]: Standardize()}, [inputs]))
    assert set(fitted.state_dict()) == {"transforms.0.loc", "transforms.0.scale"}


def test_a_fitted_part_is_kept():
    own = Standardization(torch.zeros(()), torch.tensor(3.0))
    inputs = {"a": data(9, 2), "b": data(9, 2)}
    fitted = fit_inputs({"a": own, "b": Standardize()}, [inputs])
    assert fitted.parts["a"] is own
    assert fit_inputs(own, []) is own
    torch.testing.assert_close(fitted(inputs)["a"], inputs["a"] / 3)


def test_recipes_that_do_not_fit_the_inputs_are_refused():
    x = data(5, 2)
    with pytest.raises(TypeError, match="pass a mapping from key or position"):
        fit_inputs(Standardize(), [(x, x)])
    with pytest.raises(TypeError, match="`inputs` is one tensor"):
        fit_inputs({0: Standardize()}, [x])
    with pytest.raises(ValueError, match=r"names the inputs \['z'\]; there are \['x'\]"):
        fit_inputs({"z": Standardize()}, [{"x": x}])
    with pytest.raises(ValueError, match=r"names the inputs \['x'\]; there are \[0, 1\]"):
        fit_inputs({"x": Standardize()}, [(x, x)])
    fitted = InputsStandardization({"z": Standardization(0.0, 1.0)})
    with pytest.raises(ValueError, match="there are"):
        fitted({"x": x})
    with pytest.raises(TypeError, match="one tensor"):
        fitted(x)


def test_without_centring_values_are_divided_by_their_root_mean_square():
    values = torch.tensor([[3.0, 10.0], [4.0, 10.0]])
    fitted = Standardize(center=False).fit(values)
    assert torch.equal(fitted.loc, torch.zeros(2))
    torch.testing.assert_close(fitted.scale, torch.tensor([12.5**0.5, 10.0]))
    torch.testing.assert_close(fitted.inverse(fitted(values)), values)


@pytest.mark.parametrize(
    ("axes", "fitted_on", "others"),
    [((0,), (5, 4), [(5, 1), (5, 3), (5,), (5, 4, 4)[:1]]), ((0, 2, 3), (5, 3, 4, 4), [(5, 1, 4, 4), (5, 4, 4)])],
)
def test_rows_of_another_shape_are_refused_and_never_broadcast(axes, fitted_on, others):
    fitted = Standardize(axes=axes).fit(torch.randn(fitted_on))
    for shape in others:
        with pytest.raises(ShapeError, match=r"fitted to rows of shape .* got rows of shape"):
            fitted(torch.zeros(shape))
    assert fitted(torch.zeros(2, *fitted_on[1:])).shape == (2, *fitted_on[1:])
