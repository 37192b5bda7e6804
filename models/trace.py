"""Timelines of executed steps, and the file in which Perfetto (ui.perfetto.dev) or chrome://tracing shows any timeline.

Format: "Trace Event Format", Google, complete events (`ph` "X"): one for each phase, rank and stream, in microseconds.
A rank is a process of the trace, a stream a thread of it.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from comm.schedule import RESOURCES
from comm.simulate import Span, Timeline

from .executor import Event


def executed(ranks: Sequence[Sequence[Event]], bytes_: Tensor) -> Timeline:
    """The timeline of one executed step from what each rank's executor returned, with `bytes_` [world, world] sent.

    Ranks must share a clock: threads or processes of one machine, whose `time.perf_counter` does on Linux.
    """
    if len(ranks) != len(bytes_):
        raise ValueError(f"expected the events of {len(bytes_)} ranks (bytes are {tuple(bytes_.shape)}): {len(ranks)}")
    arrived: dict[str, float] = {}  # at each network phase, the last rank
    for event in (event for events in ranks for event in events if event.resource == "network"):
        arrived[event.phase] = max(event.start, arrived.get(event.phase, event.start))
    spans = []
    for rank, events in enumerate(ranks):
        for event in events:
            waited = min(arrived.get(event.phase, event.start), event.end) - event.start
            spans.append(Span(event.phase, event.resource, rank, event.start, event.end, waited, event.stream))
    return Timeline(tuple(spans), bytes_)


def compute_seconds(timelines: Sequence[Timeline]) -> dict[str, list[float]]:
    """Seconds of each phase outside the network on each rank, medians over executed steps, for `comm.cost.costs`."""
    seconds: dict[str, list[list[float]]] = {}
    for timeline in timelines:
        for span in timeline.spans:
            if span.resource != "network":
                ranks = seconds.setdefault(span.phase, [[] for _ in timeline.bytes])
                ranks[span.rank].append(span.end - span.start)
    return {phase: [statistics.median(times) for times in ranks] for phase, ranks in seconds.items()}


def trace(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """The trace of one or more timelines by name, each from time 0: a JSON object of the trace event format."""
    events: list[dict[str, Any]] = []
    process = 0
    for name, timeline in timelines.items():
        begin = min((span.start for span in timeline.spans), default=0.0)
        for rank in range(len(timeline.bytes)):
            mine = [span for span in timeline.spans if span.rank == rank]
            events.append(_named("process_name", f"{name} rank {rank}", process, 0))
            streams = dict.fromkeys((*RESOURCES, *(_stream(span) for span in mine)))
            threads = {stream: thread for thread, stream in enumerate(streams)}
            used = {_stream(span) for span in mine}
            events += [_named("thread_name", stream, process, threads[stream]) for stream in streams if stream in used]
            events += [_complete(span, begin, process, threads[_stream(span)]) for span in mine]
            process += 1
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_trace(path: Path, timelines: Mapping[str, Timeline]) -> None:
    """Write `trace(timelines)` as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace(timelines), allow_nan=False) + "\n")


def _stream(span: Span) -> str:
    return span.stream or span.resource


def _complete(span: Span, begin: float, process: int, thread: int) -> dict[str, Any]:
    return {
        "name": span.phase,
        "cat": span.resource,
        "ph": "X",
        "ts": (span.start - begin) * 1e6,
        "dur": (span.end - span.start) * 1e6,
        "pid": process,
        "tid": thread,
        "args": {"waited_us": span.waited * 1e6},
    }


def _named(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
