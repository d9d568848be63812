"""The likelihood and the inference method of `docs/extending.md` work, and are as short as the page says."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from code_blocks import write_modules

from credibly.core.errors import FileFormatError
from credibly.distributions import functions
from credibly.inference import MLE
from credibly.likelihoods import Categorical
from credibly.model import Model
from credibly.nets import mlp
from credibly.posteriors import DrawPosterior
from credibly.serialization import load


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModuleType]]:
    """The blocks of the page as modules, imported from a folder of their own."""
    folder = tmp_path_factory.mktemp("extending")
    names = [Path(name).stem for name in write_modules("docs/extending.md", folder)]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def test_the_likelihood_is_under_thirty_lines(page: dict[str, ModuleType]) -> None:
    lines = Path(page["robust_noise"].__file__).read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) and not line.startswith("#") for line in lines) < 30


def test_the_likelihood_keeps_the_contract(page: dict[str, ModuleType], dtype: torch.dtype) -> None:
    likelihood = page["robust_noise"].RobustNoise()
    outputs = torch.tensor([[0.5, 0.0], [-2.0, 1.5]], dtype=dtype)
    predicted = likelihood(outputs)
    targets = torch.tensor([0.0, 3.0], dtype=dtype)
    assert predicted.batch_shape == (2,)
    by_hand = -(targets - predicted.loc).abs() / predicted.scale - torch.log(2 * predicted.scale)
    torch.testing.assert_close(likelihood.log_prob(likelihood.parameters_of(outputs), targets), by_hand)
    # the score in the location is +-1 / scale, so that its square is the same everywhere
    torch.testing.assert_close(likelihood.fisher(outputs)[:, 0, 0], predicted.scale**-2)


def test_the_method_fits_predicts_and_comes_back_from_its_file(page: dict[str, ModuleType]) -> None:
    use = page["use"]
    assert isinstance(use.posterior, DrawPosterior)
    assert use.posterior.num_stored == 4
    assert use.predicted.batch_shape == (100,)
    # better than a Laplace distribution fitted to the targets alone, whose log score is -log(2 b) - 1
    deviation = (use.y[:200] - use.y[:200].median()).abs().mean()
    assert float(use.score) > float(-torch.log(2 * deviation) - 1) + 0.5
    assert bool((use.lower < use.upper).all())
    torch.testing.assert_close(use.again.mean, use.predicted.mean, rtol=0, atol=0)
    torch.testing.assert_close(use.again.log_prob(use.y[200:]), use.predicted.log_prob(use.y[200:]), rtol=0, atol=0)
    with pytest.raises(FileFormatError, match=r"pass load\(\.\.\., classes=\[RobustNoise\]\)"):
        load(use.path, net=use.net)


def test_equal_seeds_give_equal_snapshots_and_the_model_is_not_touched(page: dict[str, ModuleType]) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(mlp(3, 8, hidden=()), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = torch.randn(40, 3), torch.arange(40) % 2
    method = page["snapshot_ensemble"].SnapshotEnsemble(of=MLE(num_epochs=2), num_snapshots=2)
    model = Model(net, Categorical(2))
    one, two = (method.fit(model, data, seed=3).predict(data[0]) for _ in range(2))
    torch.testing.assert_close(one.probs, two.probs, rtol=0, atol=0)
    assert not torch.equal(method.fit(model, data, seed=4).predict(data[0]).probs, one.probs)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_registered_distribution_serves_the_lower_half(page: dict[str, ModuleType]) -> None:
    predicted = page["triangular"].Triangular(torch.tensor([1.0, 3.0], dtype=torch.float64))
    levels = torch.tensor([0.1, 0.8], dtype=torch.float64)
    torch.testing.assert_close(functions.cdf(predicted, functions.icdf(predicted, levels)), levels)
    torch.testing.assert_close(functions.mean(predicted), predicted.width / 3)
    assert functions.log_prob(predicted, [0.5, 2.0]).exp().tolist() == pytest.approx([1.0, 2 / 9])
    grid = torch.linspace(0, 3, 3001, dtype=torch.float64)[:, None] * torch.tensor([1 / 3, 1.0], dtype=torch.float64)
    total = torch.trapezoid(predicted.log_prob(grid).exp(), grid, dim=0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-6, atol=0)
