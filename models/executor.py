"""Runs a Schedule: one thread per stream, each taking its phases in the schedule's order.

All ranks issue the network phases of a stream in the same order from one thread, so collectives match however long a
compute phase takes. A phase starts when the values that it needs are there; with `overlap=False` everything runs in the
caller's thread. A phase that yields waits while a phase of the stream `network` could begin or runs. Nobody waits in a
circle: what that phase needs has been given here, so this rank has entered every collective that it follows, and others
reach it without this rank's yielding phase.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from comm.schedule import Frame, Phase, Resource, Schedule
from comm.streams import on_stream


@dataclass(frozen=True)
class Event:
    """One phase as it ran: seconds of `time.perf_counter` at start and end."""

    phase: str
    resource: Resource
    start: float
    end: float
    stream: str = ""


class PhaseError(RuntimeError):
    """A phase failed; the message names it."""


class Executor:
    """Runs schedules, one step at a time. `started` is called in each stream's thread first (to set its thread count,
    say).
    """

    def __init__(self, overlap: bool = False, started: Callable[[], None] | None = None) -> None:
        self.overlap, self.started = overlap, started

    def run(self, schedule: Schedule, frame: Frame) -> list[Event]:
        """Run every phase on `frame`, which then holds all values. Returns what ran when, by start.

        Raises PhaseError naming the first phase that failed; phases that had not begun then do not run.
        """
        missing = [name for name in schedule.inputs if name not in frame]
        if missing:
            raise ValueError(f"frame: expected the inputs {', '.join(schedule.inputs)}; missing {', '.join(missing)}")
        step = _Step(schedule, frame)
        if not self.overlap:
            step.take(schedule.phases, alone=True)
        else:
            names = dict.fromkeys(phase.stream for phase in schedule.phases)
            streams = [tuple(p for p in schedule.phases if p.stream == name) for name in names]
            threads = [_Thread(self._stream, step, stream) for stream in streams]
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.ended.wait()
            except BaseException as error:  # Ctrl-C comes to the thread that waits: end the streams, then pass it on
                step.fail("wait for the streams", error)
                raise
            finally:
                for thread in threads:
                    if thread.ident is not None:
                        thread.ended.wait()
                        thread.join()
        if step.failure:
            phase, error = step.failure
            if not isinstance(error, Exception):
                raise error  # Ctrl-C and the like stay what they are
            raise PhaseError(f"phase {phase!r} failed: {type(error).__name__}: {error}") from error
        return sorted(step.events, key=lambda event: event.start)

    def _stream(self, step: "_Step", phases: tuple[Phase, ...]) -> None:
        if self.started:
            try:
                self.started()
            except BaseException as error:
                step.fail(f"start of {phases[0].stream}", error)
        with on_stream(phases[0].stream):
            step.take(phases)


class _Thread(threading.Thread):
    """Runs `run(*args)`, then sets `ended`: an interrupted `join` takes a running thread for one that ended (CPython
    3.11), an interrupted `wait` does not.
    """

    def __init__(self, run: Callable[..., None], *args: object) -> None:
        super().__init__()
        self.ended = threading.Event()
        self._run, self._args_of_run = run, args

    def run(self) -> None:
        try:
            self._run(*self._args_of_run)
        finally:
            self.ended.set()


class _Step:
    """One run of a schedule: which values are there, and whether a phase failed."""

    def __init__(self, schedule: Schedule, frame: Frame) -> None:
        self.frame = frame
        self.events: list[Event] = []
        self.failure: tuple[str, BaseException] | None = None
        self._changed = threading.Condition()
        self._there = set(schedule.inputs)
        self._critical = [phase for phase in schedule.phases if phase.stream == "network"]

    def take(self, phases: tuple[Phase, ...], alone: bool = False) -> None:
        """Run `phases` in order, each once its needs are there; stop at the first failure anywhere. `alone`: no other
        thread runs phases of this step, so there is nobody to yield to.
        """
        for phase in phases:
            with self._changed:
                self._changed.wait_for(lambda phase=phase: self.failure or self._may_begin(phase, alone))
                if self.failure:
                    return
            start = time.perf_counter()
            try:
                phase(self.frame)
            except BaseException as error:
                self.fail(phase.name, error)
                return
            with self._changed:
                self.events.append(Event(phase.name, phase.resource, start, time.perf_counter(), phase.stream))
                self._there.update(phase.gives)
                if phase in self._critical:
                    self._critical.remove(phase)
                self._changed.notify_all()

    def _may_begin(self, phase: Phase, alone: bool) -> bool:
        if not self._there.issuperset(phase.needs):
            return False
        if not phase.yields or alone or not self._critical:
            return True
        return not self._there.issuperset(self._critical[0].needs)  # the next of its stream, or the one that runs

    def fail(self, name: str, error: BaseException) -> None:
        """Begin no further phase; the first failure is the one reported."""
        with self._changed:
            self.failure = self.failure or (name, error)
            self._changed.notify_all()
