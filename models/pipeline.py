"""Training whose steps reach into each other: runs a Pipeline over a stream of batches."""

from collections.abc import Iterable, Iterator

from comm.group import Group
from comm.pipeline import Pipeline
from comm.schedule import Frame, at, split_offset

from .executor import Event, Executor


class PipelinedTraining:
    """Runs the iterations of `pipeline`, one per batch, and keeps each batch's frame while it is needed.

    All ranks make the same calls. `events` says what ran when in the last iteration. After an error nothing is
    sensible but to end: batches are then in flight.
    """

    def __init__(self, pipeline: Pipeline, executor: Executor, group: Group) -> None:
        self.pipeline, self.executor = pipeline, executor
        self.events: list[Event] = []
        self._frames: dict[int, Frame] = {}
        self._done: dict[int, set[int]] = {}  # by batch, the places of its phases that ran
        self._first = self._fed = self._next = 0  # first batch since the last drain; batches fed; next iteration
        group.open(tuple(dict.fromkeys(staged.phase.stream for staged in pipeline.staged)))

    def steps(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Train on every batch of `frames` (what `pipeline.inputs` names); yields its frame when its own iteration is
        over, and drains at the end.

        Reads `pipeline.depth` batches ahead. What runs behind is still to come when a frame is yielded: `flush`.

        Raises ValueError for a stream that says, by a true attribute `keys_from_weights`, that its ids depend on what
        was learned from the batches before (sampled negatives, say), if it would be read ahead.
        """
        if self.pipeline.depth and getattr(frames, "keys_from_weights", False):
            raise ValueError(
                f"frames: expected ids that do not depend on weights, given a {type(frames).__name__} whose ids do "
                f"(keys_from_weights): read {self.pipeline.depth} batches ahead, they would be those of older weights. "
                "Train it step by step, without a pipeline"
            )
        for frame in frames:
            self._feed(frame)
            done = self._iterate()
            if done is not None:
                yield done
        yield from self.drain()

    def drain(self) -> list[Frame]:
        """End every batch in flight without taking new ones, and flush; returns the frames of those that ended."""
        ended = []
        while self._next < self._fed:
            done = self._iterate()
            ended += [] if done is None else [done]
        self.flush()
        self._first = self._fed  # what comes next has no neighbour among these
        self._frames.clear()
        self._done.clear()
        return ended

    def flush(self) -> None:
        """Run what is behind for every batch whose iteration is over: tables are then as after plain training."""
        for behind in range(self.pipeline.lag):
            self._run(self._next + behind, self._next)

    def _feed(self, frame: Frame) -> None:
        missing = [name for name in self.pipeline.inputs if name not in frame]
        if missing:
            raise ValueError(f"frame: expected {', '.join(self.pipeline.inputs)}; missing {', '.join(missing)}")
        if self._fed == self._first:
            self._next = self._first - self.pipeline.depth
        self._frames[self._fed], self._done[self._fed] = frame, set()
        self._fed += 1

    def _iterate(self) -> Frame | None:
        """The next iteration, if enough batches are there or no more will come; its batch's frame, if it has one."""
        batch = self._next
        self._next += 1
        self._run(batch, self._fed)
        frame = self._frames.get(batch)
        for old in [old for old in self._frames if old <= batch - self.pipeline.lag]:
            if old != batch:
                del self._frames[old], self._done[old]
        return frame

    def _run(self, batch: int, end: int) -> None:
        """The phases of the iteration of `batch` on batches before `end`, but for those that ran already."""
        staged = self.pipeline.staged
        chosen = [
            place
            for place, s in enumerate(staged)
            if batch + s.ahead < end and batch + s.ahead in self._frames and place not in self._done[batch + s.ahead]
        ]
        if not chosen:
            return
        schedule = self.pipeline.schedule(chosen)
        frame: Frame = {}
        for name in schedule.inputs:
            offset, plain = split_offset(name)
            of_batch = self._frames.get(batch + offset)
            if of_batch is None:
                frame[name] = None  # no such batch: the stream begins or ends here
            elif plain in of_batch:
                frame[name] = of_batch[plain]
        self.events = self.executor.run(schedule, frame)
        for place in chosen:
            offset = staged[place].ahead
            self._done[batch + offset].add(place)
            for name in staged[place].phase.gives:
                self._frames[batch + offset][name] = frame[at(offset, name)]
