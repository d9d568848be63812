"""Save and load: a round trip for every result, and nothing in a file is ever executed."""

import contextlib
import json
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributions import Independent, Normal

import credibly
from cases import HEADS, LIKELIHOODS, METHODS, PRIORS, RECALIBRATORS, SCORES, outputs_shape
from credibly import Model, Standardize, distributions, inference, likelihoods, priors
from credibly.core.errors import FileFormatError, NotSupportedError
from credibly.core.files import read, write
from credibly.likelihoods import Likelihood


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))


def data(rows=20):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    return x, 10 + 4 * x[:, 0] + torch.randn(rows, generator=generator)


def fit(method, **options):
    model = Model(net(), likelihoods.Gaussian(), inputs=Standardize(), targets=Standardize(), **options)
    return method.fit(model, data(), start="current", seed=0)


@pytest.mark.parametrize("name", METHODS)
def test_a_posterior_comes_back_as_it_was(name, tmp_path):
    posterior = fit(METHODS[name]())
    credibly.save(posterior, tmp_path / "posterior")
    loaded = credibly.load(tmp_path / "posterior", net=net())
    assert type(loaded) is type(posterior)
    x, y = data()
    assert torch.equal(loaded.predict(x, seed=1).log_prob(y), posterior.predict(x, seed=1).log_prob(y))
    assert not any(part.training for part in loaded.model.modules())
    assert loaded.info.method == posterior.info.method
    assert loaded.info.versions == posterior.info.versions
    assert [h.loss for h in loaded.info.histories] == [h.loss for h in posterior.info.histories]
    credibly.save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "posterior").read_bytes()
    again = inference.MAP(num_epochs=1).fit(loaded.model, data(), start="current", seed=0)
    assert again.predict(x).mean.isfinite().all()


@pytest.mark.parametrize("name", LIKELIHOODS | HEADS)
def test_likelihoods_keep_their_options(name, tmp_path):
    likelihood = (LIKELIHOODS | HEADS)[name]()
    for parameter in likelihood.parameters():
        nn.init.normal_(parameter)
    credibly.save(likelihood, tmp_path / "part")
    loaded = credibly.load(tmp_path / "part")
    outputs = torch.randn(5, *outputs_shape(likelihood))
    a, b = likelihood.parameters_of(outputs), loaded.parameters_of(outputs)
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", PRIORS)
def test_priors_keep_their_options(name, tmp_path):
    prior = PRIORS[name]()
    credibly.save(prior, tmp_path / "part")
    params = {"net.0.weight": torch.randn(3, 2), "net.0.bias": torch.randn(3)}
    assert torch.equal(credibly.load(tmp_path / "part").log_prob(params), prior.log_prob(params))


def class_forecast(rows=50):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(rows, 4, generator=generator)
    return distributions.from_logits(logits), torch.randint(4, (rows,), generator=generator)


def number_forecast(rows=50):
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(rows, generator=generator)
    return Normal(loc, 1.0), loc + torch.randn(rows, generator=generator)


def vector_forecast(rows=50):
    generator = torch.Generator().manual_seed(1)
    loc = torch.randn(rows, 2, generator=generator)
    return Independent(Normal(loc, 1.0), 1), loc + torch.randn(rows, 2, generator=generator)


def forecast_for(part):
    """A forecast of the kind that a recalibrator or score applies to."""
    if not hasattr(part, "score"):
        return class_forecast()
    for predicted, targets in (class_forecast(), number_forecast(), vector_forecast()):
        with contextlib.suppress(NotSupportedError):
            part.score(predicted, targets)
            return predicted, targets
    raise AssertionError(f"no forecast fits {part}")


@pytest.mark.parametrize("name", RECALIBRATORS)
def test_a_recalibration_comes_back_as_it_was(name, tmp_path):
    predicted, targets = class_forecast()
    recalibration = RECALIBRATORS[name]().fit(predicted, targets)
    credibly.save(recalibration, tmp_path / "map")
    loaded = credibly.load(tmp_path / "map")
    assert torch.equal(loaded(predicted).probs, recalibration(predicted).probs)
    assert loaded.report == recalibration.report
    credibly.save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "map").read_bytes()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("extras", [(), ("groups",), ("weights",), ("difficulty",)])
def test_a_conformal_predictor_comes_back_as_it_was(name, extras, tmp_path, device):
    score = SCORES[name]()
    predicted, targets = forecast_for(score)
    every = {
        "groups": torch.arange(50) % 3,
        "weights": torch.linspace(1, 2, 50),
        "difficulty": torch.linspace(1, 3, 50),
    }
    chosen = {key: every[key] for key in extras}
    predictor = score.calibrate(predicted, targets, **chosen, seed=0)
    credibly.save(predictor, tmp_path / "sets")
    loaded = credibly.load(tmp_path / "sets", device=device)
    a, b = (each.predict(predicted, 0.8, **chosen, seed=3) for each in (predictor, loaded))
    assert torch.equal(a.contains(targets), b.contains(targets))
    measure = next(name for name in ("size", "width", "volume") if hasattr(a, name))
    assert torch.equal(getattr(a, measure), getattr(b, measure))
    meta = credibly.load(tmp_path / "sets", device="meta")
    assert meta.scores.device.type == "meta"


def test_a_fitted_standardisation_comes_back_as_it_was(tmp_path):
    transform = Standardize().fit(data()[0])
    credibly.save(transform, tmp_path / "transform")
    assert credibly.load(tmp_path / "transform").same_as(transform)


def test_infinite_numbers_survive(tmp_path):
    history = credibly.training.History(loss=[float("inf"), float("-inf"), 1.5])
    credibly.save(history, tmp_path / "history")
    assert credibly.load(tmp_path / "history").loss == [float("inf"), float("-inf"), 1.5]
    with safe_open(tmp_path / "history", framework="pt") as file:
        text = file.metadata()["credibly"]
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class Marker:
    """Runs code when it is unpickled."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return (open, (self.flag, "w"))


@pytest.mark.parametrize("write", ["pickle", "torch", "numpy", "text", "empty", "safetensors"])
def test_files_of_others_are_refused_and_run_no_code(write, tmp_path):
    flag, path = tmp_path / "flag", tmp_path / "file"
    marker = Marker(str(flag))
    if write == "pickle":
        path.write_bytes(pickle.dumps(marker))
    elif write == "torch":
        torch.save({"state": marker}, path)
    elif write == "numpy":
        with path.open("wb") as file:
            np.save(file, np.array([marker], dtype=object), allow_pickle=True)
    elif write == "safetensors":
        save_file({"a": torch.zeros(1)}, path)
    else:
        path.write_text("hello" if write == "text" else "")
    with pytest.raises(FileFormatError):
        credibly.load(path, net=net())
    assert not flag.exists()


def rewritten(path, change):
    specification, tensors = read(path)
    write(path, change(specification), tensors)


@pytest.mark.parametrize("name", ["os.system", "core.files.write", "training.fused_adam", "builtins.eval", "Model"])
def test_a_file_cannot_name_anything_but_the_librarys_classes(name, tmp_path):
    credibly.save(priors.Normal(2.0), tmp_path / "prior")

    def change(specification):
        specification["object"]["$object"] = name
        return specification

    rewritten(tmp_path / "prior", change)
    with pytest.raises(FileFormatError, match="not part of this library"):
        credibly.load(tmp_path / "prior")


def test_a_damaged_file_is_refused(tmp_path):
    credibly.save(priors.Normal(2.0), tmp_path / "prior")
    content = (tmp_path / "prior").read_bytes()
    (tmp_path / "prior").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileFormatError):
        credibly.load(tmp_path / "prior")


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    credibly.save(priors.Normal(2.0), path)
    with pytest.raises(TypeError):
        credibly.save(priors.ByName({"*": lambda _: None}), path)
    assert credibly.load(path).scale == 2.0
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (None, "net="),
        (lambda: nn.Sequential(nn.Linear(3, 8)), "lacks"),
        (lambda: nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(), nn.Linear(9, 1)), "shape"),
    ],
)
def test_another_network_is_refused(other, match, tmp_path):
    credibly.save(fit(inference.MLE(num_epochs=1)), tmp_path / "file")
    with pytest.raises(FileFormatError, match=match):
        credibly.load(tmp_path / "file", net=None if other is None else other())


class Tied(nn.Module):
    def __init__(self, *, tied):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.last = nn.Linear(3, 1)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.last(self.b(self.a(x)))


def test_ties_are_kept_and_compared(tmp_path):
    posterior = inference.MLE(num_epochs=1).fit(Model(Tied(tied=True), likelihoods.Gaussian()), data(), seed=0)
    credibly.save(posterior, tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=Tied(tied=True))
    assert loaded.model.net.a.weight is loaded.model.net.b.weight
    assert torch.equal(loaded.predict(data()[0]).mean, posterior.predict(data()[0]).mean)
    with pytest.raises(FileFormatError):
        credibly.load(tmp_path / "file", net=Tied(tied=False))


def test_frozen_weights_stay_frozen(tmp_path):
    model = Model(net(), likelihoods.Gaussian())
    model.net[0].requires_grad_(requires_grad=False)
    credibly.save(inference.MLE(num_epochs=1).fit(model, data(), seed=0), tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=net())
    assert set(loaded.fixed) == {"net.0.weight", "net.0.bias"}


class Student(Likelihood):
    """A user's own likelihood."""

    num_outputs = 1

    def __init__(self, width=1.0):
        super().__init__()
        self.width = width

    def parameters_of(self, outputs):
        return {"loc": outputs.squeeze(-1)}

    def distribution(self, parameters):
        return Normal(parameters["loc"], self.width, validate_args=False)


def test_the_users_own_classes_are_passed_in(tmp_path):
    model = Model(net(), Student(2.5), output=lambda value: value)
    posterior = inference.MLE(num_epochs=1).fit(model, data(), seed=0)
    credibly.save(posterior, tmp_path / "file")
    with pytest.raises(FileFormatError, match="classes="):
        credibly.load(tmp_path / "file", net=net(), output=lambda value: value)
    with pytest.raises(FileFormatError, match="output="):
        credibly.load(tmp_path / "file", net=net(), classes=[Student])
    loaded = credibly.load(tmp_path / "file", net=net(), classes=[Student], output=lambda value: value)
    assert loaded.model.likelihood.width == 2.5
    assert torch.equal(loaded.predict(data()[0]).mean, posterior.predict(data()[0]).mean)


@pytest.mark.parametrize("name", METHODS)
def test_everything_is_on_the_device_asked_for(name, tmp_path, device):
    """B59: the device is read from the tensors, never stored as text."""
    posterior = fit(METHODS[name]())
    credibly.save(posterior, tmp_path / "file")
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert "cuda" not in file.metadata()["credibly"]
    meta = credibly.load(tmp_path / "file", net=net(), device="meta")
    for part in getattr(meta, "members", [meta]):
        tensors = [*part.model.parameters(), *part.model.buffers()]
        tensors += [*getattr(part, "draws", {}).values(), *getattr(part, "buffers", {}).values()]
        assert {value.device.type for value in tensors} == {"meta"}
    loaded = credibly.load(tmp_path / "file", net=net(), device=device)
    x = data()[0]
    a, b = loaded.predict(x, seed=0).mean.cpu(), posterior.predict(x, seed=0).mean
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_network_that_prints_differently_is_pointed_out(tmp_path):
    credibly.save(fit(METHODS["mc_dropout"]()), tmp_path / "file")
    other = net()
    other[3].p = 0.5
    with pytest.warns(UserWarning, match=r"Dropout\(p=0.5.*Dropout\(p=0.3"):
        credibly.load(tmp_path / "file", net=other)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        credibly.save(priors.Normal(), tmp_path / "nowhere" / "file")


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_the_precision_of_the_file_wins(precision, tmp_path):
    x, y = data()
    model = Model(net().to(precision), likelihoods.Gaussian(scale=0.3))
    posterior = inference.MLE(num_epochs=1).fit(model, (x.to(precision), y.to(precision)), seed=0)
    credibly.save(posterior, tmp_path / "file")
    loaded = credibly.load(tmp_path / "file", net=net())
    assert {p.dtype for p in loaded.model.net.parameters()} == {precision}
    assert torch.equal(loaded.outputs(x.to(precision)), posterior.outputs(x.to(precision)))
