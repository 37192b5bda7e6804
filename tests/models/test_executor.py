import signal
import threading
import time
from itertools import pairwise

import pytest

from comm.schedule import Phase, Schedule
from models.executor import Executor, PhaseError

BOTH = pytest.mark.parametrize("overlap", [False, True])


def phase(name, run, needs=(), gives=(), resource="compute"):
    return Phase(name, run, needs, gives, resource)


def chain(*phases, inputs=()):
    return Schedule(phases, inputs)


@BOTH
def test_values_flow_and_phases_keep_their_order(overlap):
    schedule = chain(
        phase("a", lambda x: x + 1, ("x",), ("y",)),
        phase("b", lambda y: (y * 2, y * 3), ("y",), ("p", "q"), "network"),
        phase("c", lambda p, q: p + q, ("p", "q"), ("z",), "host_link"),
        phase("d", lambda z: None, ("z",)),
        inputs=("x",),
    )
    frame = {"x": 1}
    events = Executor(overlap).run(schedule, frame)
    assert frame == {"x": 1, "y": 2, "p": 4, "q": 6, "z": 10}
    assert [(event.phase, event.resource) for event in events] == [
        ("a", "compute"),
        ("b", "network"),
        ("c", "host_link"),
        ("d", "compute"),
    ]
    assert all(before.end <= after.start for before, after in pairwise(events))


@BOTH
def test_one_resource_takes_its_phases_in_the_schedules_order(overlap):
    ran = []
    network = [
        phase(f"n{i}", lambda *_, i=i: ran.append(i), ("slow",) if i == 0 else (), (), "network") for i in range(5)
    ]
    Executor(overlap).run(chain(phase("slow", lambda: time.sleep(0.02), (), ("slow",)), *network), {})
    assert ran == [0, 1, 2, 3, 4]  # n1 needs nothing, and waits for its turn all the same


def meet(barrier):
    """Two phases that only end if they run at the same time."""
    return [phase(r, lambda: barrier.wait() and None, resource=r) for r in ("compute", "network")]


def test_overlap_runs_two_resources_at_once():
    first, second = Executor(overlap=True).run(chain(*meet(threading.Barrier(2, timeout=20))), {})
    assert second.start < first.end


def test_without_overlap_nothing_runs_at_once():
    with pytest.raises(PhaseError, match="phase 'compute' failed: BrokenBarrierError"):
        Executor().run(chain(*meet(threading.Barrier(2, timeout=0.05))), {})


@BOTH
def test_a_failure_names_its_phase_and_ends_the_step(overlap):
    ran = []
    schedule = chain(
        phase("good", lambda: 1, (), ("x",)),
        phase("bad", lambda x: 1 // 0, ("x",), ("y",), "network"),
        phase("after", ran.append, ("y",)),
        phase("later", lambda: ran.append(1), (), (), "network"),
    )
    frame = {}
    with pytest.raises(PhaseError, match="phase 'bad' failed: ZeroDivisionError") as caught:
        Executor(overlap).run(schedule, frame)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert ran == []
    assert frame == {"x": 1}


@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_phase_stays_one(overlap, error):
    def interrupted():
        raise error

    with pytest.raises(error):
        Executor(overlap).run(chain(phase("a", interrupted, resource="network")), {})


def test_an_interrupt_while_waiting_ends_the_step():
    ran, before = [], threading.active_count()

    def interrupt():
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # that thread waits for this one
        time.sleep(0.05)

    schedule = chain(phase("a", interrupt, (), ("x",), "network"), phase("b", ran.append, ("x",)))
    with pytest.raises(KeyboardInterrupt):
        Executor(overlap=True).run(schedule, {})
    assert ran == []
    assert threading.active_count() == before


def test_each_stream_is_started_in_its_own_thread():
    started, ran = [], []
    schedule = chain(
        phase("a", lambda: ran.append(threading.current_thread())),
        phase("b", lambda: ran.append(threading.current_thread()), resource="network"),
    )
    Executor(overlap=True, started=lambda: started.append(threading.current_thread())).run(schedule, {})
    assert len(set(ran)) == 2
    assert set(started) == set(ran)


def test_a_stream_that_fails_to_start_ends_the_step():
    def fails():
        raise OSError("no such thread layer")

    schedule = chain(phase("a", lambda: 1, (), ("x",), "network"), phase("b", lambda x: None, ("x",)))
    with pytest.raises(PhaseError, match=r"phase 'start of (compute|network)' failed: OSError: no such thread layer"):
        Executor(overlap=True, started=fails).run(schedule, {})


def test_missing_inputs_are_named():
    with pytest.raises(ValueError, match="expected the inputs x, y; missing y"):
        Executor().run(chain(inputs=("x", "y")), {"x": 1})
