"""What each inference method costs, and what it gives, for docs/methods.md: `python -m benchmarks.method_costs`.

Handwritten digits, 1200 rows to train on and 597 to judge, a network 64-128-128-10. Times are in units of one fit by
maximum likelihood and of one prediction by its result, as `predict` makes them if nothing else is said: 100 draws, all
that are stored, or a closed form; the files that `save` writes in units of its file. Far from the digits, noise of
their range is put in, and the confidence in the class that is named is averaged. No promise of speed.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import credibly
from credibly import Model, inference, likelihoods, metrics
from credibly.posteriors import Posterior

NUM_EPOCHS, REPEATS = 50, 3
TRAINING: dict[str, Any] = {"num_epochs": NUM_EPOCHS, "batch_size": 128, "learning_rate": 3e-3}
TRAIN = inference.MAP(**TRAINING)

METHODS: dict[str, inference.InferenceMethod] = {
    "MLE": inference.MLE(**TRAINING),
    "MAP": TRAIN,
    "Ensemble(10)": inference.Ensemble(of=TRAIN, num_members=10),
    "MCDropout": inference.MCDropout(train=TRAIN),
    "SWAG": inference.SWAG(train=TRAIN),
    "Laplace, last layer": inference.Laplace(
        train=TRAIN, subset=inference.LastLayer(), structure=inference.Kronecker(), tune=inference.Evidence()
    ),
    "Laplace, Kronecker": inference.Laplace(train=TRAIN, tune=inference.Evidence()),
    "Laplace, diagonal": inference.Laplace(train=TRAIN, structure=inference.Diagonal(), tune=inference.Evidence()),
    "MeanField": inference.MeanField(**TRAINING),
    "IVON": inference.IVON(num_epochs=NUM_EPOCHS, batch_size=128),
}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float() / 16, y[order]
    train, test = (x[:1200], y[:1200]), (x[1200:], y[1200:])
    noise = torch.rand(597, 64, generator=torch.Generator().manual_seed(1))
    rows = {name: _measured(name, method, train, test, noise) for name, method in METHODS.items()}
    unit = rows["MLE"]
    print("| method | fit | predict | file | accuracy | log score | ECE | confidence in noise |")
    print("|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        costs = " | ".join(f"{row[key] / unit[key]:.1f}" for key in ("fit", "predict", "file"))
        worth = " | ".join(f"{row[key]:.3f}" for key in ("accuracy", "log score", "ECE"))
        print(f"| `{name}` | {costs} | {worth} | {row['noise']:.2f} |")
    print(f"MLE: {unit['fit']:.2f} s to fit, {1e3 * unit['predict']:.2f} ms to predict, {unit['file'] / 1e6:.2f} MB")


def _measured(
    name: str, method: inference.InferenceMethod, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], far: Tensor
) -> dict[str, float]:
    times, posterior = [], None
    for _ in range(REPEATS):
        model = _model(0.1 if name == "MCDropout" else 0.0)
        began = time.perf_counter()
        posterior = method.fit(model, train, seed=0)
        times.append(time.perf_counter() - began)
    assert posterior is not None
    predicted = posterior.predict(test[0], seed=0)
    return {
        "fit": min(times),
        "predict": _time_of_prediction(posterior, test[0]),
        "file": _bytes(posterior),
        "accuracy": float(metrics.accuracy(predicted, test[1])),
        "log score": float(metrics.log_score(predicted, test[1])),
        "ECE": float(metrics.top_label_ece(predicted, test[1])),
        "noise": float(posterior.predict(far, seed=0).probs.amax(-1).mean()),
    }


def _model(dropout: float) -> Model:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((64, 128), (128, 128)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return Model(nn.Sequential(*layers, nn.Linear(128, 10)), likelihoods.Categorical(num_classes=10))


def _time_of_prediction(posterior: Posterior, x: Tensor) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        posterior.predict(x, seed=0)
        times.append(time.perf_counter() - began)
    return min(times)


def _bytes(posterior: Posterior) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior"
        credibly.save(posterior, path)
        return float(path.stat().st_size)


if __name__ == "__main__":
    main()
