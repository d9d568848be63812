"""Every method on every split, two at a time; what has been measured before is not measured again."""

import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.uci.data import DATASETS
from benchmarks.uci.methods import METHODS, Candidate, candidates
from benchmarks.uci.records import append, key_of, recorded
from benchmarks.uci.scores import scores
from benchmarks.uci.splits import NUM_SPLITS, Rows, splits
from benchmarks.uci.table import table
from credibly.core.errors import NotFiniteError

__all__ = ["RESULTS", "measure", "run"]

RESULTS = Path(__file__).with_name("results.jsonl")
NUM_PROCESSES = 2


def run(path: Path = RESULTS) -> int:
    """Measure what is missing, then print the table."""
    done = {key_of(line) for line in recorded(path)}
    missing = [(d, m, s) for s, d, m in product(range(NUM_SPLITS), DATASETS, METHODS) if (d, m, s) not in done]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_PROCESSES, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for future in as_completed([pool.submit(measure, *key) for key in missing]):
            append(path, future.result())
    print(table(recorded(path), list(DATASETS), list(METHODS)))
    return 0


def measure(dataset: str, method: str, split: int) -> dict[str, Any]:
    """Choose on the validation rows, fit again on all training rows, and score the test rows."""
    began = time.monotonic()
    rows = splits(DATASETS[dataset]())[split]
    grid = candidates(method, dataset)
    inner = [_fit_and_score(method, each, rows.inner_train, rows.validation, split) for each in grid]
    order = sorted(range(len(grid)), key=lambda index: inner[index]["log_prob"], reverse=True)
    for best in order:  # the first of them nearly always
        final = _fit_and_score(method, grid[best], rows.train, rows.test, split)
        if math.isfinite(final["log_prob"]):
            break
    return {
        "dataset": dataset,
        "method": method,
        "split": split,
        **final,
        "chosen": grid[best].options,
        "validation_log_prob": inner[best]["log_prob"],
        "diverged": sum(not math.isfinite(each["log_prob"]) for each in inner),
        "seconds": round(time.monotonic() - began, 1),
    }


def _fit_and_score(method: str, candidate: Candidate, train: Rows, test: Rows, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)  # the network's first weights
    model, recipe = METHODS[method](train, candidate.options)
    try:
        posterior = recipe.fit(model, train, seed=seed)
    except NotFiniteError:  # training diverged: no candidate
        return {"rmse": math.inf, "log_prob": -math.inf}
    num_draws = None if posterior.num_stored is not None else candidate.num_draws
    return scores(posterior.predict(test[0], num_draws=num_draws, seed=seed), test[1])
