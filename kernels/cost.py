"""What work costs: bytes over each link, flops, messages; and the seconds a Device needs at the least."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """Work of one op or phase on one rank.

    `bytes` by link: `memory` (device memory, read + written), `intra` (between ranks of a node), `nic` (between
    nodes), `host` (device to host memory). `messages` by link likewise.
    """

    bytes: Mapping[str, float] = field(default_factory=dict)
    flops: float = 0.0
    messages: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(_add(self.bytes, other.bytes), self.flops + other.flops, _add(self.messages, other.messages))


@dataclass(frozen=True)
class Device:
    """Limits of one device: memory `bandwidth` in bytes/s, `flops` in flop/s; `source`: where they were measured."""

    name: str
    bandwidth: float
    flops: float
    source: str


def roofline_seconds(cost: Cost, device: Device) -> float:
    """Seconds that `cost` needs on `device` if memory and arithmetic overlap perfectly: a lower bound."""
    return max(cost.bytes.get("memory", 0.0) / device.bandwidth, cost.flops / device.flops)


def _add(a: Mapping[str, float], b: Mapping[str, float]) -> dict:
    return {link: a.get(link, 0) + b.get(link, 0) for link in {**a, **b}}
