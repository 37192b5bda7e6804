import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm.cost import Collective, PhaseCost, Work, costs, loads
from comm.schedule import Phase, Schedule
from comm.simulate import Span, Timeline, simulate
from comm.topology import Link, Topology
from kernels.cost import Cost, Device

DEVICE = Device("made up", bandwidth=100.0, flops=10.0, source="made up")


LINKS = {"intra": Link(1.0, 10.0, "made up"), "nic": Link(4.0, 2.0, "made up")}


def topology(nodes=2, ranks_per_node=2, kernels=None, **links):
    links = {f"{kind}/all_to_all": link for kind, link in (LINKS | links).items()}
    return Topology(nodes, ranks_per_node, links, DEVICE, kernels or {})


def traffic(world, pairs):
    bytes_ = torch.zeros(world, world, dtype=torch.int64)
    for source, target, n in pairs:
        bytes_[source, target] = n
    return bytes_


def all_to_all(world, pairs, calls=1):
    return PhaseCost((Collective("all_to_all", traffic(world, pairs), calls),))


def phase(name, resource, needs=(), gives=()):
    return Phase(name, lambda *_: None, needs, gives, resource)


def test_loads_are_those_of_the_busiest_rank_inside_and_node_between():
    # Inside: rank 1 gets 5, rank 2 sends 3 and gets 4. Between: node 0 sends 7 + 2, node 1 sends 8.
    bytes_ = traffic(4, [(0, 1, 5), (2, 3, 3), (3, 2, 4), (0, 2, 7), (1, 3, 2), (2, 0, 8)])
    assert loads(bytes_, 2) == {"intra": 5.0, "nic": 9.0}
    assert loads(bytes_.T, 2) == {"intra": 5.0, "nic": 9.0}
    assert loads(bytes_, 4) == {"intra": float(5 + 7), "nic": 0.0}


@pytest.mark.parametrize(
    ("pairs", "calls", "seconds"),
    [
        ([(0, 1, 20)], 1, 1 + 20 / 10),  # inside a node: no start-up of the link between nodes
        ([(0, 2, 20)], 1, 4 + 20 / 2),
        ([(0, 2, 20), (1, 3, 6)], 1, 4 + 26 / 2),  # the ranks of a node share its NIC
        ([(0, 2, 20), (2, 0, 6)], 1, 4 + 20 / 2),  # both directions at once
        ([(0, 2, 2), (2, 3, 90)], 1, 1 + 90 / 10),  # both kinds of link at once: the slower one counts
        ([(0, 2, 20)], 3, 3 * 4 + 20 / 2),
        ([], 2, 2 * 4),  # nothing to send: everybody still waits for everybody
    ],
)
def test_a_collective_takes_what_its_slowest_link_takes(pairs, calls, seconds):
    assert all_to_all(4, pairs, calls).network_seconds(topology()) == pytest.approx(seconds)


def test_a_ring_over_nodes_is_one_link():
    ring = Collective("all_reduce", traffic(4, [(0, 1, 90), (1, 2, 90), (2, 3, 90), (3, 0, 90)]), 1)
    links = {"nic/all_reduce": Link(4.0, 2.0, "made up")}
    assert PhaseCost((ring,)).network_seconds(Topology(2, 2, links, DEVICE)) == 4 + 90 / 2


def test_collectives_of_a_phase_add_up_and_share_the_burst_of_their_link():
    inside, between = traffic(4, [(0, 1, 20)]), traffic(4, [(0, 2, 20)])
    cost = PhaseCost(tuple(Collective("all_to_all", bytes_, 2) for bytes_ in (inside, between, inside, between)))
    burst = Link(4.0, 2.0, "made up", ((0.0, 4.0), (30.0, 4.0)))  # 30 B cost nothing
    assert cost.network_seconds(topology()) == (4 * 1 + 40 / 10) + (4 * 4 + 40 / 2)
    assert cost.network_seconds(topology(nic=burst)) == (4 * 1 + 40 / 10) + (4 * 4 + 10 / 2)


def test_one_rank_has_nobody_to_wait_for():
    assert all_to_all(1, []).network_seconds(Topology(1, 1, {}, DEVICE)) == 0.0


def test_a_link_that_the_topology_lacks_is_named():
    cost = PhaseCost((Collective("all_reduce", traffic(4, [(0, 1, 1)]), 1),))
    with pytest.raises(ValueError, match=r"a link 'intra/all_reduce', given intra/all_to_all, nic/all_to_all"):
        cost.network_seconds(topology())


def test_work_takes_its_kernels_measured_rate_and_else_the_roofline():
    work = tuple(Cost({"memory": n}, flops=30.0) for n in (100.0, 1000.0))
    rate = {"cpu/gather": Link(0.5, 200.0, "made up")}
    assert PhaseCost(compute=Work("cpu/gather", work)).compute_seconds(topology(kernels=rate)) == [1.0, 5.5]
    assert PhaseCost(compute=Work("dense", work)).compute_seconds(topology(kernels=rate)) == [3.0, 10.0]


STEP = Schedule(
    (
        phase("route", "compute", ("bags",), ("routed",)),
        phase("send", "network", ("routed",), ("rows",)),
        phase("bottom", "compute", ("bags",), ("x",)),
        phase("top", "compute", ("rows", "x"), ("y",)),
    ),
    ("bags",),
)
PRICES = {
    "route": PhaseCost(compute=[1.0, 3.0]),
    "send": all_to_all(2, [(0, 1, 100)]),  # 1 + 100 / 10 = 11
    "bottom": PhaseCost(compute=[8.0, 4.0]),
    "top": PhaseCost(compute=[2.0, 1.0]),
}
PAIR = {"nodes": 1, "ranks_per_node": 2}


def test_a_step_worked_out_by_hand_without_overlap():
    found = simulate(STEP, PRICES, topology(**PAIR))
    at = {(span.phase, span.rank): (span.start, span.waited, span.end) for span in found.spans}
    assert at == {
        ("route", 0): (0, 0, 1), ("send", 0): (1, 2, 14), ("bottom", 0): (14, 0, 22), ("top", 0): (22, 0, 24),
        ("route", 1): (0, 0, 3), ("send", 1): (3, 0, 14), ("bottom", 1): (14, 0, 18), ("top", 1): (18, 0, 19),
    }  # fmt: skip
    assert found.seconds == 24.0
    assert found.communication == {"send": 11.0}
    assert found.exposed == [13.0, 11.0]
    assert found.bytes.tolist() == [[0, 100], [0, 0]]


def test_a_step_worked_out_by_hand_with_overlap():
    found = simulate(STEP, PRICES, topology(**PAIR), overlap=True)
    at = {(span.phase, span.rank): (span.start, span.waited, span.end) for span in found.spans}
    assert at == {
        ("route", 0): (0, 0, 1), ("send", 0): (1, 2, 14), ("bottom", 0): (1, 0, 9), ("top", 0): (14, 0, 16),
        ("route", 1): (0, 0, 3), ("send", 1): (3, 0, 14), ("bottom", 1): (3, 0, 7), ("top", 1): (14, 0, 15),
    }  # fmt: skip
    assert found.seconds == 16.0
    assert found.communication == {"send": 11.0}
    assert found.exposed == [13.0 - 8.0, 11.0 - 4.0]


def sharing(*sizes, links=None, calls=1):
    """Network phases in streams of their own, all ready at once, of `sizes` bytes between the nodes."""
    phases, prices = [], {}
    for i, (pair, n) in enumerate(sizes):
        phases.append(Phase(f"s{i}", lambda *_: None, ("x",), (f"y{i}",), "network", stream=f"t{i}"))
        prices[f"s{i}"] = all_to_all(4, [(*pair, n)], calls)
    found = simulate(Schedule(tuple(phases), ("x",)), prices, topology(**(links or {})), overlap=True)
    return [next(s.end for s in found.spans if s.phase == f"s{i}") for i in range(len(sizes))]


FREE = {"nic": Link(0.0, 2.0, "made up"), "intra": Link(0.0, 10.0, "made up")}


def test_streams_share_the_bandwidth_of_a_link_but_not_its_latency():
    nic, intra = (0, 2), (0, 1)
    assert sharing((nic, 20), links=FREE) == [10.0]
    assert sharing((nic, 20), (nic, 20), links=FREE) == [20.0, 20.0]  # half the rate each
    assert sharing((nic, 20), (nic, 60), links=FREE) == [20.0, 40.0]  # the longer one goes on alone
    assert sharing((nic, 20), (intra, 60), links=FREE) == [10.0, 6.0]  # different links
    assert sharing((nic, 20), (nic, 20)) == [4 + 20.0, 4 + 20.0]
    assert sharing((nic, 6), (nic, 6), (nic, 6), links=FREE) == [9.0, 9.0, 9.0]


def test_a_transfer_that_joins_later_slows_the_first_one_from_then_on():
    phases = (
        Phase("first", lambda *_: None, ("x",), ("a",), "network", stream="critical"),
        Phase("think", lambda *_: None, ("x",), ("b",), "compute"),
        Phase("second", lambda *_: None, ("b",), ("c",), "network", stream="ahead"),
    )
    prices = {
        "first": all_to_all(4, [(0, 2, 20)]),  # 10 s alone
        "second": all_to_all(4, [(0, 2, 4)]),  # 2 s alone
        "think": PhaseCost(compute=[5.0, 6.0, 1.0, 1.0]),
    }
    found = simulate(Schedule(phases, ("x",)), prices, topology(**FREE), overlap=True)
    ends = {span.phase: span.end for span in found.spans}
    assert (ends["second"], ends["first"]) == (6 + 2 * 2, 12.0)  # together from 6 to 10
    assert [s.waited for s in found.spans if s.phase == "second"] == [1.0, 0.0, 5.0, 5.0]
    assert simulate(Schedule(phases, ("x",)), prices, topology(**FREE)).seconds == 10 + 6 + 2


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_a_shared_link_is_busy_exactly_as_long_as_its_bytes_take(sizes):
    ends = sharing(*(((0, 2), n) for n in sizes), links=FREE)
    assert max(ends) == pytest.approx(sum(sizes) / 2, rel=1e-12)  # a few roundings a flow
    assert all(end >= n / 2 * (1 - 1e-12) for end, n in zip(ends, sizes, strict=True))
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    assert [ends[i] for i in order] == sorted(ends)


def test_exposed_counts_overlapping_network_once_and_no_help_from_other_streams():
    def span(resource, start, end, stream):
        return Span(f"{resource}{start}", resource, 0, start, end, stream=stream)

    line = Timeline(
        (
            span("network", 0.0, 4.0, "network"),
            span("network", 2.0, 6.0, "ahead"),
            span("compute", 6.0, 9.0, "ahead"),
            span("network", 7.0, 8.0, "network"),
            span("compute", 1.0, 3.0, "compute"),
        ),
        torch.zeros(1, 1, dtype=torch.int64),
    )
    assert line.exposed == [6.0 - 2.0 + 1.0]


def random_step(seed, world=4, rounds=5):
    """Compute, collective, compute, collective, ...: each needs what the one before gives."""
    draw, phases, prices = random.Random(seed), [], {}
    for i in range(rounds):
        phases.append(phase(f"work{i}", "compute", (f"v{2 * i}",), (f"v{2 * i + 1}",)))
        phases.append(phase(f"send{i}", "network", (f"v{2 * i + 1}",), (f"v{2 * i + 2}",)))
        prices[f"work{i}"] = PhaseCost(compute=[draw.random() for _ in range(world)])
        pairs = [(s, t, draw.randrange(99)) for s in range(world) for t in range(world) if s != t]
        prices[f"send{i}"] = all_to_all(world, pairs, draw.randrange(1, 4))
    return Schedule(tuple(phases), ("v0",)), prices


@given(st.integers(0, 2**32), st.booleans())
def test_a_chain_is_the_sum_over_phases_of_maxima_over_ranks(seed, overlap):
    schedule, prices = random_step(seed)
    largest = [max(price.compute_seconds(topology()), default=0.0) for price in prices.values()]
    moved = [price.network_seconds(topology()) for price in prices.values()]
    found = simulate(schedule, prices, topology(), overlap)
    assert found.seconds == pytest.approx(sum(largest) + sum(moved), rel=20 * 2**-52)  # a dozen additions
    assert found.communication == pytest.approx({f"send{i}": m for i, m in enumerate(moved[1::2])}, rel=20 * 2**-52)
    # with nothing to hide behind, overlap hides nothing
    assert min(found.exposed) >= sum(moved) * (1 - 20 * 2**-52)


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["intra", "nic"]), st.floats(1, 50), st.floats(1, 50))
def test_a_slower_link_never_makes_a_step_faster(seed, overlap, kind, more_alpha, less_beta):
    schedule, prices = random_step(seed)
    slow = Link(LINKS[kind].alpha * more_alpha, LINKS[kind].beta / less_beta, "made up")
    fast = simulate(schedule, prices, topology(), overlap)
    slower = simulate(schedule, prices, topology(**{kind: slow}), overlap)
    assert slower.seconds >= fast.seconds * (1 - 20 * 2**-52)


def test_overlap_never_makes_a_step_slower():
    for seed in range(20):
        schedule, prices = random_step(seed)
        alone, prices_alone = random_step(seed + 100)
        both = Schedule(
            schedule.phases + tuple(p.scoped("b", ("v0",)) for p in alone.phases),
            ("v0",),
        )
        prices |= {f"b.{name}": price for name, price in prices_alone.items()}
        times = [simulate(both, prices, topology(), overlap).seconds for overlap in (False, True)]
        assert times[1] < times[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"send": None}, "phase 'send': expected a cost, given none"),
        ({"send": PRICES["route"]}, "phase 'send': expected collectives over 2 ranks"),
        ({"send": all_to_all(4, [])}, "phase 'send': expected collectives over 2 ranks"),
        ({"top": PRICES["send"]}, r"phase 'top' \(compute\): expected the compute of 2 ranks"),
        ({"top": PhaseCost(compute=[1.0])}, r"phase 'top' \(compute\): expected the compute of 2 ranks"),
        (
            {"top": PhaseCost(compute=Work("op", (Cost(),)))},
            r"phase 'top' \(compute\): expected the compute of 2 ranks",
        ),
    ],
)
def test_a_cost_that_does_not_fit_its_phase_is_named(change, message):
    prices = {name: price for name, price in (PRICES | change).items() if price}
    with pytest.raises(ValueError, match=message):
        simulate(STEP, prices, topology(**PAIR))


def test_costs_go_to_the_phase_whose_name_begins_their_label():
    sent = {"send.rows": traffic(2, [(0, 1, 3)]), "send": traffic(2, [(1, 0, 4)])}
    calls = {("send.rows", "all_to_all"): 2, ("send", "all_reduce"): 1}
    found = costs(STEP, sent, calls, {"route": [1.0, 1.0], "bottom": [2.0, 2.0], "top": [3.0, 3.0]})
    assert found["send"].collectives == (
        Collective("all_to_all", sent["send.rows"], 2),
        Collective("all_reduce", sent["send"], 1),
    )
    assert [found[name].compute for name in ("route", "bottom", "top")] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert costs(STEP, sent, calls)["top"].compute == [0.0, 0.0]


@pytest.mark.parametrize(
    ("sent", "calls", "compute", "message"),
    [
        (["send", "other"], ["send"], None, "only one has other"),
        (["send"], ["send", "other"], None, "only one has other"),
        (["send", "sender"], ["send", "sender"], None, "every label to belong to a network phase; sender does not"),
        (["x"], ["x"], None, "phase 'send': expected bytes and calls under its name"),
        (["send"], ["send"], {"route": [0.0, 0.0]}, "phase 'bottom': expected its seconds or its work in `compute`"),
    ],
)
def test_a_label_without_a_phase_or_a_phase_without_a_price_is_named(sent, calls, compute, message):
    with pytest.raises(ValueError, match=message):
        costs(STEP, {s: traffic(2, []) for s in sent}, {(c, "all_to_all"): 1 for c in calls}, compute)


def test_a_link_with_points_is_linear_between_them():
    link = Link(1.0, 5.0, "made up", ((10.0, 1.0), (20.0, 3.0)))
    assert [link.seconds(b) for b in (0, 10, 15, 20, 40)] == [1.0, 1.0, 2.0, 3.0, 3.0 + 20 / 5]
    assert link.seconds(15, messages=3) == 2.0 + 2 * 1.0
    times = [link.seconds(b) for b in range(60)]
    assert all(a <= b for a, b in pairwise(times))
