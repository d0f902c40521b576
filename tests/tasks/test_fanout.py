"""Grids side by side: the number of workers never shows in a result."""

import re

import pytest

from tasks.environment import WORKERS_VARIABLE
from tasks.errors import UserError
from tasks.fanout import fanout, workers
from tests.tasks import fanout_jobs as jobs
from tests.tasks import fanout_torch_jobs as torch_jobs


@pytest.fixture
def with_workers(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return lambda count: monkeypatch.setenv(WORKERS_VARIABLE, str(count))


def test_one_worker_and_three_give_the_same_bits(with_workers):
    with_workers(1)
    alone = fanout(torch_jobs.draw, range(6), threads=2, seed=7)
    with_workers(3)
    assert fanout(torch_jobs.draw, range(6), threads=2, seed=7) == alone
    given, own, threads, variable, deterministic = zip(*alone, strict=True)
    assert len(set(given)) == 1
    assert len(set(own)) == 6
    assert set(threads) == {2}
    assert set(variable) == {"2"}
    assert set(deterministic) == {True}
    with_workers(1)
    [other] = fanout(torch_jobs.draw, [0], seed=8)
    assert other[0] != given[0]
    assert other[1] == own[0]


def test_results_and_calls_follow_the_jobs_whichever_ends_first(with_workers, tmp_path):
    with_workers(3)
    heard = []
    results = fanout(
        jobs.second_waits_for_third,
        [(number, str(tmp_path)) for number in range(3)],
        on_result=lambda job, result: heard.append((job[0], result)),
    )
    assert results == [0, 1, 2]
    assert heard == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("count", [1, 3])
def test_an_exception_in_a_job_is_raised_here(with_workers, count):
    with_workers(count)
    heard = []
    with pytest.raises(ValueError, match="job 1 fails"):
        fanout(jobs.fail, range(3), on_result=lambda job, result: heard.append(job))
    assert heard == [0] or (count > 1 and heard == [])  # nothing after the failure, nothing out of order


def test_no_jobs_give_no_results(with_workers):
    with_workers(3)
    assert fanout(jobs.fail, []) == []


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²", "+3"])
def test_a_number_of_workers_that_is_none_is_refused(with_workers, text):
    with_workers(text)
    with pytest.raises(UserError, match=re.escape(f"PAPERFLOWS_WORKERS is '{text}': a whole number from 1 is wanted")):
        workers()


def test_workers_are_the_variable_or_the_cores(with_workers, monkeypatch):
    with_workers(5)
    assert workers() == 5
    monkeypatch.delenv(WORKERS_VARIABLE)
    assert workers() >= 1
