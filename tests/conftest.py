"""Options and fixtures of the whole suite: devices, precisions, and a guard over torch's global state."""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

import cases
from global_state import unchanged_global_state

DTYPES = {"float32": torch.float32, "float64": torch.float64}

hypothesis.settings.register_profile("credibly", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.register_profile("thorough", deadline=None, database=None, max_examples=100, print_blob=True)
hypothesis.settings.load_profile(
    "credibly"
)  # pytest --hypothesis-profile thorough: new examples in every run, and more


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("credibly")
    group.addoption("--device", default="cpu", help="where the tests run: cpu, cuda, cuda:1, ...")
    group.addoption("--dtype", choices=sorted(DTYPES), default=None, help="one precision; without it tests run in both")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the workers of pytest-xdist are the parallelism
    device = torch.device(config.getoption("device"))
    cases.DEVICE = device
    if device.type == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device {device} was asked for, and torch sees no such device")


def pytest_report_header(config: pytest.Config) -> str:
    precision = config.getoption("dtype") or " and ".join(DTYPES)
    return f"torch {torch.__version__} on {config.getoption('device')} in {precision}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a `dtype` once in each precision."""
    if "dtype" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("dtype")
        names = [chosen] if chosen else list(DTYPES)
        metafunc.parametrize("dtype", [DTYPES[name] for name in names], ids=names, scope="module")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("device"))


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    """Equal random numbers for every run of a test, and an error if it leaves a global switch turned."""
    torch.manual_seed(0)
    with unchanged_global_state():
        yield
