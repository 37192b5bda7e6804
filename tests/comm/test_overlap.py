"""The order of phases under overlap, and what it hides, by the simulator."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm.cost import Collective, PhaseCost
from comm.overlap import INDEX, overlapped
from comm.schedule import RESOURCES, Phase, Resource, Schedule
from comm.simulate import simulate
from comm.topology import Link, Topology
from kernels.cost import Device


def phase(name: str, needs: str = "", gives: str = "", resource: Resource = "compute") -> Phase:
    return Phase(name, print, tuple(needs.split()), tuple(gives.split()), resource)


def network(name: str, needs: str, gives: str) -> Phase:
    return phase(name, needs, gives, "network")


def team(label: str) -> tuple[list[Phase], list[Phase]]:
    """A de-duplicating exchange: forward and backward."""
    forward = [
        phase(f"{label}.dedup", "bags", f"{label}.distinct"),
        network(f"{label}.keys", f"{label}.distinct", f"{label}.asked"),
        phase(f"{label}.gather", f"{label}.asked", f"{label}.rows"),
        network(f"{label}.send", f"{label}.rows", f"{label}.returned"),
        phase(f"{label}.combine", f"{label}.returned", f"{label}.pooled"),
    ]
    backward = [
        phase(f"{label}.index", f"{label}.asked", f"{label}.order"),
        phase(f"{label}.local_reduce", "grad", f"{label}.sums"),
        network(f"{label}.grad_send", f"{label}.sums", f"{label}.grads"),
        phase(f"{label}.apply", f"{label}.grads {label}.order"),
    ]
    return forward, backward


def step() -> list[Phase]:
    """Two exchanges, a replicated table, and a dense part in three."""
    (forward_a, backward_a), (forward_b, backward_b) = team("a"), team("b")
    return [
        *forward_a,
        *forward_b,
        phase("r.gather", "bags", "r.pooled"),
        phase("bottom", "dense", "below"),
        phase("top", "a.pooled b.pooled r.pooled below", "grad below_grad"),
        *backward_a,
        *backward_b,
        phase("r.local_reduce", "grad", "r.sums"),
        network("r.grad_send", "r.sums", "r.grads"),
        phase("r.apply", "r.grads"),
        phase("bottom_backward", "below_grad", "dense_grad"),
        network("dense_reduce", "dense_grad", "dense_sum"),
    ]


def test_exchanges_travel_together_and_compute_runs_under_them():
    order = overlapped(step(), "top")
    names = [p.name for p in order]
    on_network = ["a.keys", "b.keys", "a.send", "b.send", "a.grad_send", "b.grad_send", "r.grad_send", "dense_reduce"]
    assert [p.name for p in order if p.stream == "network"] == on_network
    compute = [p.name for p in order if p.stream == "compute"]
    assert compute[: compute.index("top") + 1] == [
        *("a.dedup", "b.dedup", "a.gather", "b.gather", "r.gather", "bottom", "a.combine", "b.combine", "top")
    ]
    assert compute.index("bottom_backward") < compute.index("a.apply")
    assert [p.name for p in order if p.stream == INDEX] == ["a.index", "b.index"]
    assert sorted(names) == sorted(p.name for p in step())
    Schedule(order, ("bags", "dense"))


@given(st.data())
def test_any_step_keeps_its_phases_and_can_run(data):
    count = data.draw(st.integers(1, 12))
    phases = []
    for number in range(count):
        needs = data.draw(st.sets(st.integers(0, number - 1))) if number else set()
        resource: Any = data.draw(st.sampled_from(RESOURCES))
        phases.append(Phase(f"p{number}", print, tuple(f"v{n}" for n in sorted(needs)), (f"v{number}",), resource))
    turn = f"p{data.draw(st.integers(0, count - 1))}"
    order = overlapped(phases, turn)
    assert sorted(p.name for p in order) == sorted(p.name for p in phases)
    Schedule(order, ())  # raises if a phase came before what gives its needs
    assert all(p.resource == "compute" and p.name != turn for p in order if p.stream == INDEX)


def seconds(phases: list[Phase], dense_s: float) -> float:
    """Of one step: a network phase takes 1 s, each of the dense parts `dense_s`, nothing else any time."""
    one = PhaseCost((Collective("all_to_all", torch.tensor([[0, 1], [1, 0]]), 1),))
    costs = {
        p.name: one
        if p.resource == "network"
        else PhaseCost(compute=[dense_s if p.name in ("bottom", "top", "bottom_backward") else 0.0] * 2)
        for p in phases
    }
    topology = Topology(1, 2, {"intra/all_to_all": Link(0.0, 1.0, "made up")}, Device("made up", 1.0, 1.0, ""))
    return simulate(Schedule(tuple(phases), ("bags", "dense")), costs, topology, overlap=True).seconds


def test_it_hides_the_bottom_in_the_exchange_both_ways():
    # keys 2 s, values 2 s (bottom under them), top, gradients 3 s (bottom_backward under them), dense_reduce 1 s
    assert seconds(list(overlapped(step(), "top")), 2.0) == pytest.approx(2 + 2 + 2 + 3 + 1)
    # one team's values wait for the other's in the plain order; nothing runs under the last one but the bottom
    assert seconds(step(), 2.0) > 2 + 2 + 2 + 3 + 1


def test_the_turn_must_be_there():
    with pytest.raises(ValueError, match="turn: expected the name of a phase, given 'dense'"):
        overlapped(step(), "dense")
