"""What the cluster looks like: ranks on nodes, the speed of every link between them, and of the kernels on a device."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from kernels.cost import Cost, Device, roofline_seconds


@dataclass(frozen=True)
class Link:
    """One kind of link under one collective, or one kernel: `alpha` seconds a message, `beta` bytes/s; `source` says
    where measured.

    `points`, if any, are (bytes, seconds) of one message, ascending in both: seconds are then linear between them,
    the first one's below them, and grow by 1 / `beta` a byte above them.
    """

    alpha: float
    beta: float
    source: str
    points: tuple[tuple[float, float], ...] = ()

    def seconds(self, bytes_: float, messages: int = 1) -> float:
        """Seconds for `bytes_` in `messages`, of which one carries nearly everything (others count their alpha)."""
        if not self.points:
            return messages * self.alpha + bytes_ / self.beta
        sizes, seconds = zip(*self.points, strict=True)
        beyond = max(bytes_ - sizes[-1], 0.0) / self.beta
        return (messages - 1) * self.alpha + float(np.interp(bytes_, sizes, seconds)) + beyond


@dataclass(frozen=True)
class Topology:
    """`nodes` x `ranks_per_node` ranks, node-major. `links` by "<link>/<collective>", as in "intra/all_to_all".

    Bytes of an `intra` link are those of its busiest rank, of a `nic` link those of its busiest NIC, out or in: a node
    has `nics` of them, each for a run of its ranks.
    `kernels` by "<backend>/<op>" take bytes as in the op's contract (`cost` in its `cases.py`).
    """

    nodes: int
    ranks_per_node: int
    links: Mapping[str, Link]
    device: Device
    kernels: Mapping[str, Link] = field(default_factory=dict)
    nics: int = 1

    def __post_init__(self) -> None:
        if self.nics < 1 or self.ranks_per_node % self.nics:
            raise ValueError(
                f"topology: expected nics that divide {self.ranks_per_node} ranks of a node, given {self.nics}"
            )

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def link(self, kind: str, collective: str) -> Link:
        """The link of that kind (`intra`, `nic`) under that collective; ValueError that lists the links if there is
        none.
        """
        name = f"{kind}/{collective}"
        if name not in self.links:
            given = ", ".join(self.links) or "none"
            raise ValueError(f"topology: expected a link {name!r}, given {given}: calibrate it or choose a preset")
        return self.links[name]

    def compute_seconds(self, op: str, cost: Cost) -> float:
        """Seconds of `cost` on a rank's device: by the measured rate of `op` ("<backend>/<op>") if there is one, else
        by the device's roofline.
        """
        if op in self.kernels:
            return self.kernels[op].seconds(cost.bytes.get("memory", 0.0))
        return roofline_seconds(cost, self.device)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Topology":
        """Read what `save` wrote."""
        fields = json.loads(path.read_text())
        links, kernels = ({name: _link(link) for name, link in fields[kind].items()} for kind in ("links", "kernels"))
        return Topology(
            fields["nodes"], fields["ranks_per_node"], links, Device(**fields["device"]), kernels, fields.get("nics", 1)
        )


def _link(fields: dict) -> Link:
    return Link(**{**fields, "points": tuple(tuple(point) for point in fields["points"])})
