"""What runs beside a step does not queue ahead of the step's own exchanges."""

import time

from comm.schedule import Phase, Schedule
from models.executor import Executor


def assert_critical_first() -> None:
    """A gradient exchange is due, and runs, when a prefetch could begin: the prefetch waits until it is over."""

    def take(seconds):
        def run(*_):
            time.sleep(seconds)
            return seconds

        return run

    phases = (
        Phase("dense", take(0.01), (), ("grad",), "compute"),
        Phase("early_gather", take(0.03), (), ("early",), "compute", "ahead"),
        Phase("early_send", take(0.01), ("early",), ("returned",), "network", "ahead", yields=True),
        Phase("grad_send", take(0.06), ("grad",), ("sums",), "network"),
        Phase("apply", take(0.0), ("sums",), (), "compute"),
    )
    events = {event.phase: event for event in Executor(overlap=True).run(Schedule(phases, ()), {})}
    assert events["early_send"].start >= events["grad_send"].end


def test_a_prefetch_never_queues_ahead_of_a_gradient_exchange():
    assert_critical_first()


def test_a_prefetch_begins_at_once_while_no_exchange_is_due():
    phases = (
        Phase("early_send", lambda: time.sleep(0.02) or 1, (), ("returned",), "network", "ahead", yields=True),
        Phase("dense", lambda: time.sleep(0.05) or 1, (), ("grad",), "compute"),
        Phase("grad_send", lambda _: None, ("grad",), (), "network"),
    )
    events = {event.phase: event for event in Executor(overlap=True).run(Schedule(phases, ()), {})}
    assert events["early_send"].end < events["grad_send"].start


def test_without_overlap_nobody_is_yielded_to():
    phases = (
        Phase("early_send", lambda: 1, (), ("returned",), "network", "ahead", yields=True),
        Phase("grad_send", lambda: 2, (), ("sums",), "network"),
    )
    events = Executor(overlap=False).run(Schedule(phases, ()), {})
    assert [event.phase for event in events] == ["early_send", "grad_send"]


def test_an_exchange_behind_one_that_waits_is_not_due():
    """Rows of a later part could be sent, but for the gradients before them: the link is free for a prefetch."""
    phases = (
        Phase("early_send", lambda: time.sleep(0.01) or 1, (), ("returned",), "network", "ahead", yields=True),
        Phase("dense", lambda: time.sleep(0.05) or 1, (), ("grad",), "compute"),
        Phase("grad_send.0", lambda _: None, ("grad",), (), "network"),
        Phase("send.2", lambda: None, (), (), "network"),
    )
    events = {event.phase: event for event in Executor(overlap=True).run(Schedule(phases, ()), {})}
    assert events["early_send"].end < events["grad_send.0"].start
