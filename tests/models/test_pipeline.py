import time
from dataclasses import replace

import numba
import pytest
import torch

from comm.group import simulate
from comm.pipeline import Pipeline, Staged
from comm.schedule import Phase, Schedule
from models.executor import Executor
from models.pipeline import PipelinedTraining
from tests.comm.workload import ARMS, Work, digest, train

SLOWLY = {"overlap": True, "delays": 1}


@pytest.mark.parametrize(("strategy", "split"), ARMS)
def test_keys_ahead_change_no_bit_and_no_byte(strategy, split):
    plain = Work(strategy, split, "rowwise_adagrad", weighted=True, steps=5)
    for depth in (1, 2):
        works = (plain, replace(plain, ahead=depth, **SLOWLY))
        results = [simulate(4, lambda group, work=work: train(group, work), 2) for work in works]
        for mine, theirs in zip(*results, strict=True):
            assert digest(mine) == digest(theirs)
            assert mine.sent == theirs.sent


def test_more_batches_ahead_than_there_are():
    plain = Work(steps=2)
    results = [simulate(2, lambda group, work=work: train(group, work)) for work in (plain, replace(plain, ahead=5))]
    assert digest(results[0][0]) == digest(results[1][0])


class Log:
    """A pipeline of `early` (2 ahead), `own` and `late` (1 behind), which note what they ran on."""

    def __init__(self, overlap: bool) -> None:
        self.ran: list[tuple[str, int]] = []
        staged = [
            Staged(2, self._phase("early", ("x",), "early")),
            Staged(0, self._phase("own", ("early", "+1/early", "-1/own"), "own")),
            Staged(-1, self._phase("late", ("own", "x"), "late")),
        ]

        def group_of(group):
            executor = Executor(overlap, started=lambda: numba.set_num_threads(1))
            self.training = PipelinedTraining(Pipeline(staged, ("x",)), executor, group)

        simulate(1, group_of)

    def _phase(self, name, needs, gives):
        def run(x, *others):
            self.ran.append((name, x[1] if isinstance(x, tuple) else x, *others))
            return name, x[1] if isinstance(x, tuple) else x

        return Phase(name, run, needs, (gives,), "compute", name)

    def of(self, name):
        return [entry[1] for entry in self.ran if entry[0] == name]


@pytest.mark.parametrize("overlap", [False, True])
def test_every_phase_runs_once_on_every_batch(overlap):
    log = Log(overlap)
    assert [frame["x"] for frame in log.training.steps({"x": x} for x in range(5))] == [0, 1, 2, 3, 4]
    assert [log.of(name) for name in ("early", "own", "late")] == [[0, 1, 2, 3, 4]] * 3


def test_it_reads_no_further_ahead_than_it_must():
    read = []
    log = Log(False)
    steps = log.training.steps({"x": read.append(x) or x} for x in range(9))
    next(steps)
    assert read == [0, 1, 2]


def test_neighbours_are_none_at_the_ends():
    log = Log(False)
    list(log.training.steps({"x": x} for x in range(2)))
    assert [entry[2:] for entry in log.ran if entry[0] == "own"] == [(("early", 1), None), (None, ("own", 0))]


def test_a_flush_runs_what_is_behind_once():
    log = Log(False)
    for frame in log.training.steps({"x": x} for x in range(4)):
        if frame["x"] == 1:
            assert log.of("late") == [0]
            log.training.flush()
            log.training.flush()
            assert log.of("late") == [0, 1]
    assert log.of("late") == [0, 1, 2, 3]


def test_a_drain_ends_what_is_in_flight_and_begins_anew():
    log = Log(False)
    steps = log.training.steps({"x": x} for x in range(6))
    assert next(steps)["x"] == 0
    assert [frame["x"] for frame in log.training.drain()] == [1, 2]
    assert log.of("late") == [0, 1, 2]
    assert [frame["x"] for frame in steps] == [3, 4, 5]
    assert [entry[2:] for entry in log.ran if entry[:2] == ("own", 3)] == [(("early", 4), None)]
    assert log.of("own") == log.of("late") == list(range(6))


def test_a_missing_input_is_named():
    log = Log(False)
    with pytest.raises(ValueError, match="expected x; missing x"):
        list(log.training.steps([{"y": 1}]))


def test_streams_have_communicators_of_their_own():
    """Two streams of two ranks in opposite order: over one communicator they would exchange each other's values."""

    def run(group):
        group.open(("ahead", "other"))

        def swap(label, wait):
            def exchange():
                time.sleep(wait)
                return group.all_gather(numbers[label], [1, 1], label).tolist()

            return exchange

        numbers = {"a": torch.tensor([group.rank]), "b": torch.tensor([10 + group.rank])}
        waits = (0.0, 0.05) if group.rank else (0.05, 0.0)
        phases = [
            Phase(label, swap(label, wait), (), (label,), "network", stream)
            for label, wait, stream in zip("ab", waits, ("ahead", "other"), strict=True)
        ]
        frame = {}
        Executor(overlap=True).run(Schedule(tuple(phases), ()), frame)
        return frame

    assert simulate(2, run) == [{"a": [0, 1], "b": [10, 11]}] * 2


def test_a_stream_that_was_not_opened_is_refused():
    def run(group):
        phase = Phase("a", lambda: group.exchange(torch.zeros(1), "a"), (), ("x",), "network", "ahead")
        Executor(overlap=True).run(Schedule((phase,), ()), {})

    with pytest.raises(RuntimeError, match=r"stream 'ahead': expected `group\.open`"):
        simulate(1, run)
