"""Several arms on one stream, warmed, and then timed in turn under one setting after another."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.offload._arms import DEVICE, LOOKAHEAD, UNPACED, Lane, Memory, Sized, lane
from experiments.offload._streams import Stream, distinct_by_batch
from experiments.record import Measurement, Value
from experiments.timing import Samples, random_row_bandwidth
from models.cache import WAYS

COUNTED = ("rows", "misses", "first_touches", "conflicts", "write_backs", "bytes_in", "bytes_out", "stall_ns")
"""Counters that a round gives, a step each."""

AHEAD = 3 + LOOKAHEAD
"""Batches that the deepest pipeline reads ahead: steps that would run short of them are not taken."""


@dataclass(frozen=True)
class Timed:
    """One arm under one setting: seconds of its steps, counters a step, seconds a step before the sparse backward."""

    samples: Samples
    counted: dict[str, float]
    stall: float


class Lab:
    """`stream`, and once started arms on it. The first arm is always the whole table on the device.

    `fast`: bytes/s of random rows in memory; `embedding_s`: seconds of a step on the device without a dense part.
    `most`: distinct rows of the largest batch; `two`: of two neighbouring ones together, in the mean.
    """

    def __init__(self, stream: Stream, memory: Memory | None = None) -> None:
        self.stream, self.bags = stream, stream.bags()
        self.rows = list(distinct_by_batch(stream, self.bags))
        self.most = max(map(len, self.rows))
        self.two = float(np.mean([len(np.union1d(a, b)) for a, b in zip(self.rows[:6], self.rows[1:6], strict=False)]))
        self.memory = memory or Memory.of(stream)
        self.fast = random_row_bandwidth(4 * stream.dim)
        self.lanes: list[Lane] = []
        self.left, self.embedding_s = 0, 0.0

    def lines(self, scale: float) -> int:
        """Lines beside the overflow lines, so that the model has `scale` times the rows of both together.

        ValueError if the overflow lines of two batches leave none.
        """
        lines = int(self.stream.total_rows / scale) - 2 * self.most
        if lines < WAYS:
            raise ValueError(
                f"scale: expected a device of more than {2 * self.most} rows (the overflow lines of two batches), "
                f"given {self.stream.total_rows / scale:.0f} at {scale}x: use larger tables or smaller batches"
            )
        return lines // WAYS * WAYS

    def start(self, arms: Sequence[Sized], history: int, warm: int) -> None:
        """Begin at batch `history`, with every cache `warm` steps old."""
        made = [Sized(DEVICE), *arms]
        self.lanes = [lane(self.stream, self.bags, self.rows, history, sized, self.memory) for sized in made]
        self.left = len(self.rows) - history
        for _ in range(warm):
            self.round()
        self.embedding_s = statistics.median(self.round()[0][0] for _ in range(3))

    def timed(self, rounds: int, dense: float, link: float, row_s: float = 0.0) -> dict[str, Timed]:
        """By name of arm. `dense`: seconds of the dense part over `embedding_s`; `link`: its bytes/s over `fast`."""
        return timed([self], rounds, dense * self.embedding_s, link * self.fast, row_s)[0]

    def round(self) -> tuple[list[float], list[float]]:
        """(seconds, stall) of a step of every arm; the next round begins with the next arm."""
        self.left -= 1
        first = self.left % len(self.lanes)
        seconds, stalls = [0.0] * len(self.lanes), [0.0] * len(self.lanes)
        for number in (*range(first, len(self.lanes)), *range(first)):
            seconds[number] = self.lanes[number].step()
            stalls[number] = stall_of(self.lanes[number])
        return seconds, stalls

    def environment(self, link: float, row_s: float = 0.0) -> dict[str, Value]:
        """What a record of such steps adds to its environment."""
        rate = link * self.fast
        return {
            "host_link": f"token bucket, {rate:.4g} bytes/s each way, {row_s:g} s a row",
            "host_link_bytes_per_s": rate,
            "host_link_row_s": row_s,
            "fast_bytes_per_s": self.fast,
            "device_time": "embedding kernels real, one core a stream; dense part a timer",
            "dense_grads": "off",
        }


def timed(labs: Sequence[Lab], rounds: int, dense_s: float, rate: float, row_s: float = 0.0) -> list[dict[str, Timed]]:
    """Of each lab by name of arm, rounds of one beside those of the others. `rate`: the link's bytes/s.

    Raises ValueError if a stream has too few batches left.
    """
    for lab in labs:
        if rounds > lab.left - AHEAD:
            raise ValueError(f"rounds: expected at most the {lab.left - AHEAD} batches left, given {rounds}")
        for each in lab.lanes:
            each.timed.dense_s, each.link.bytes_per_s, each.link.row_s = dense_s, rate, row_s
    before = [[each.moved() for each in lab.lanes] for lab in labs]
    taken = [[lab.round() for lab in labs] for _ in range(rounds)]
    found = []
    for number, lab in enumerate(labs):
        of_arm = {}
        for place, each in enumerate(lab.lanes):
            new, old = each.moved(), before[number][place]
            counted = {name: (new[name] - old[name]) / rounds for name in COUNTED if name in new}
            samples = Samples(tuple(of_round[number][0][place] for of_round in taken))
            stall = statistics.median(of_round[number][1][place] for of_round in taken)
            of_arm[each.sized.name] = Timed(samples, counted, stall)
            each.link.bytes_per_s, each.link.row_s = UNPACED, 0.0
        found.append(of_arm)
    return found


def stall_of(each: Lane) -> float:
    """Seconds in which the compute stream waited before the sparse backward of the last step."""
    end = None
    for event in sorted((e for e in each.events if e.stream in ("compute", "network")), key=lambda e: e.start):
        if event.phase.endswith(".settle") and end is not None:
            return event.start - end
        end = event.end if end is None else max(end, event.end)
    return 0.0


def slow_downs(
    lab: Lab, found: Mapping[str, Timed], point: Mapping[str, Value], link: float, fits: Timed | None = None
) -> Iterator[Measurement]:
    """A measurement of every arm against the model all on the device, round by round; `fits`: also against that one."""
    base = found[DEVICE.name]
    for name, arm in found.items():
        ratio = arm.samples.over(base.samples)
        metrics = {
            "step_ms": 1e3 * arm.samples.median,
            "embedding_ms": 1e3 * lab.embedding_s,
            "slow_down": 100 * (ratio.median - 1),
            "slow_down_low": 100 * (ratio.low - 1),
            "slow_down_high": 100 * (ratio.high - 1),
            "stall_ms": 1e3 * arm.stall,
            **arm.counted,
        }
        if fits:
            metrics["slow_down_fits"] = 100 * (arm.samples.over(fits.samples).median - 1)
        units = {n: "%" if n.startswith("slow") else "ms" if n.endswith("_ms") else "a step" for n in metrics}
        size: dict[str, Value] = {"lines": int(name.split("/")[1]) if "/" in name else 0, "two": lab.two}
        of_arm = {**point, "arm": name.split("/")[0], **size}
        yield Measurement(of_arm, metrics, units, len(arm.samples.seconds), "emulated", lab.environment(link))
