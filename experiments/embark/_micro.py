"""A step whose values travel in parts under the dense compute of other parts of the batch, from the parts of a score.

What `comm/microbatch.py` does for unique tables, here for every table of a plan: the timeline of a rank as slow as the
slowest of each stage, priced by `comm.simulate`. Bytes stay (a row travels once, with the first part that reads it);
every part more pays the latency of its collectives again. Keys are a batch ahead, as under overlap `steps`; the dense
all-reduce follows the gradients on the network, under the updates.
"""

from collections.abc import Mapping
from dataclasses import replace

from comm.cost import PhaseCost
from comm.plan import Plan
from comm.planner.score import score
from comm.planner.workload import Workload
from comm.schedule import Phase, Schedule
from comm.simulate import simulate
from comm.topology import Topology
from kernels.cost import Device

PARTS = (1, 2, 4, 8)
AHEAD = ("route", "keys", "meet", "keys_rail")
SEND, GRAD = ("send",), ("grad_send", "node_reduce", "grad_rail")


def micro_batched(plan: Plan, workload: Workload, topology: Topology) -> tuple[float, int]:
    """Seconds of a step of `plan` with the best number of parts, and that number."""
    parts = score(plan, workload, topology).parts
    links = {name: replace(link, alpha=0.0) for name, link in topology.links.items()}
    instant = score(plan, workload, replace(topology, links=links)).parts
    return min((seconds(parts, instant, count), count) for count in PARTS)


def seconds(parts: Mapping[str, float], instant: Mapping[str, float], count: int) -> float:
    """Of a step in `count` parts; `instant` are the same parts of the score without latency."""

    def each(names: tuple[str, ...]) -> float:
        moved = sum(instant[name] for name in names)
        return moved / count + sum(parts[name] for name in names) - moved

    took = {"gather": parts["gather"], "apply": parts["apply"], "dense_reduce": parts["dense_reduce"]}
    phases = [_phase("gather", (), "compute")]
    for k in range(count):
        took[f"send{k}"], took[f"grad{k}"] = each(SEND), each(GRAD)
        took[f"dense{k}"] = (parts["combine"] + parts["dense"]) / count
        phases.append(_phase(f"send{k}", ("gather",), "host_link"))
    for k in range(count):
        phases.append(_phase(f"dense{k}", (f"send{k}",), "compute"))
        phases.append(_phase(f"grad{k}", (f"dense{k}",), "host_link"))
    last = tuple(f"grad{k}" for k in range(count))
    phases += [_phase("dense_reduce", (f"dense{count - 1}",), "host_link"), _phase("apply", last, "compute")]
    costs = {phase.name: PhaseCost(compute=[took[phase.name]]) for phase in phases}
    rank = Topology(1, 1, {}, Device("one rank", 1.0, 1.0, "none: seconds are given"))
    timeline = simulate(Schedule(tuple(phases), ()), costs, rank, overlap=True)
    return max(timeline.seconds, sum(parts[name] for name in AHEAD))


def _phase(name: str, needs: tuple[str, ...], resource: str) -> Phase:
    """What only has a price."""
    return Phase(name, lambda *_: None, needs, (name,), resource)  # pyright: ignore[reportArgumentType]
