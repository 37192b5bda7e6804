"""What the cluster looks like: ranks on nodes, and the speed of every link between them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.cost import Device


@dataclass(frozen=True)
class Link:
    """One kind of link under one collective: `alpha` seconds a message, `beta` bytes/s a rank; `source` says where
    measured.
    """

    alpha: float
    beta: float
    source: str

    def seconds(self, bytes_: float, messages: int = 1) -> float:
        """Seconds for `bytes_` in `messages`."""
        return messages * self.alpha + bytes_ / self.beta


@dataclass(frozen=True)
class Topology:
    """`nodes` x `ranks_per_node` ranks, node-major. `links` by "<link>/<collective>", as in "intra/all_to_all"."""

    nodes: int
    ranks_per_node: int
    links: dict[str, Link]
    device: Device

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Topology":
        """Read what `save` wrote."""
        fields = json.loads(path.read_text())
        links = {name: Link(**link) for name, link in fields["links"].items()}
        return Topology(fields["nodes"], fields["ranks_per_node"], links, Device(**fields["device"]))
