"""Work on parts in threads: in order, in the caller's modes, and its errors are those of the first part."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from credibly.core.threads import in_threads, num_threads


def test_results_are_in_order_and_every_part_has_a_thread():
    names = in_threads(lambda part: (part, threading.get_ident()), [3, 1, 2])
    assert [part for part, _ in names] == [3, 1, 2]
    assert threading.get_ident() not in {name for _, name in names}
    assert in_threads(lambda part: threading.get_ident(), [0]) == [threading.get_ident()]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_modes_are_the_callers(inference, grad):
    with torch.inference_mode(inference), torch.set_grad_enabled(grad):
        modes = in_threads(lambda _: (torch.is_inference_mode_enabled(), torch.is_grad_enabled()), [0, 1])
    assert modes == [(inference, grad)] * 2


def test_torch_works_in_one_thread_there_and_in_as_many_as_before_afterwards():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert in_threads(lambda _: torch.get_num_threads(), [0, 1]) == [1, 1]
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)


def test_the_error_of_the_first_part_is_raised():
    def work(part):
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        in_threads(work, [0, 1, 2])


def test_threads_are_as_many_as_torch_may_use(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert num_threads(torch.device("cpu"), most=10) == 4
    assert num_threads(torch.device("cpu"), most=2) == 2
    assert num_threads(torch.device("cpu"), most=0) == 1
    assert num_threads(torch.device("cuda"), most=10) == 1
