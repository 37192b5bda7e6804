import random
from functools import partial

import pytest

from comm.group import simulate as on_ranks
from comm.topology import Link, Topology
from experiments import __main__ as command
from experiments import calibrate
from experiments.calibrate import CASES, calibrate_group, fit, sizes_up_to, time_collectives
from kernels import OPS

SIZES = sizes_up_to(1 << 22, 4)


def made(seconds, noise=0.0, seed=0):
    draw = random.Random(seed)
    return [(float(size), seconds(size) * (1 + noise * draw.uniform(-1, 1))) for size in SIZES]


def test_there_are_20_sizes_that_divide_over_the_ranks():
    assert len(SIZES) == len(set(SIZES)) == 20
    assert SIZES[0] == 1024
    assert SIZES[-1] == 1 << 22
    assert all(size % 16 == 0 for size in SIZES)


@pytest.mark.parametrize(("alpha", "beta"), [(1e-4, 25e6), (2e-3, 1e9), (0.0, 1e6)])
def test_a_fit_finds_the_line_that_made_the_times(alpha, beta):
    link = fit(made(Link(alpha, beta, "").seconds), "made up")
    assert link.points == ()
    # the solver stops where the cost, a sum of squares, changes by 1e-9: at errors of 3e-5; three times that
    assert [link.seconds(size) for size in SIZES] == pytest.approx([alpha + size / beta for size in SIZES], rel=1e-4)
    assert "line" in link.source


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_of_noisy_times_predicts_within_the_noise(seed):
    truth = Link(1e-3, 25e6, "made up")
    link = fit(made(truth.seconds, noise=0.1, seed=seed), "made up")
    # every time is off by 10 % at most, and a line or a mean of neighbours by no more than the times that it is made of
    assert all(link.seconds(size) == pytest.approx(truth.seconds(size), rel=0.1) for size in SIZES)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_fit_finds_the_burst_of_a_token_bucket(noise):
    def shaped(size):  # the first bytes cost next to nothing
        return 1e-3 + size / 1e9 + max(size - SIZES[11], 0) / 25e6

    link = fit(made(shaped, noise), "made up")
    assert "knee" in link.source
    near = {"rel": noise or 1e-4}  # as above; within the noise otherwise
    assert [link.seconds(size) for size in SIZES] == pytest.approx([shaped(size) for size in SIZES], **near)
    assert link.seconds(4 * SIZES[-1]) == pytest.approx(shaped(4 * SIZES[-1]), **near)


def test_times_that_fall_do_not_make_a_link_that_falls():
    link = fit([(1.0, 5.0), (2.0, 4.0), (3.0, 3.0), (4.0, 30.0), (5.0, 29.0), (6.0, 28.0)], "made up")
    times = [link.seconds(size / 4) for size in range(30)]
    assert times == sorted(times)


@pytest.mark.parametrize(("world", "ranks_per_node"), [(2, 2), (2, 1), (4, 2)])
def test_every_collective_is_timed_on_every_link_at_the_bytes_that_topologies_mean(world, ranks_per_node):
    sizes = [512, 1024]

    def run(group):
        points = time_collectives(group, sizes, 2, 0.0, 0.0)
        return points, dict(group.sent), dict(group.calls)

    points, sent, calls = on_ranks(world, run, ranks_per_node)[0]
    assert sent == calls == {}
    nodes = world // ranks_per_node
    found = {name: [bytes_ for bytes_, _ in timed] for name, timed in points.items()}
    if nodes == 1:  # each of two ranks sends half its buffer, a ring's all_reduce twice that
        assert found == {"intra/all_to_all": [256, 512], "intra/all_gather": [256, 512],
                         "intra/all_reduce": [512, 1024], "intra/reduce_scatter": [256, 512]}  # fmt: skip
    elif world == 4:  # two ranks a node send half their buffer to the other node; a ring crosses once each way
        assert found == {"nic/all_to_all": [512, 1024], "nic/all_gather": [512, 1024],
                         "nic/all_reduce": [768, 1536], "nic/reduce_scatter": [384, 768],
                         "intra/all_to_all": [256, 512], "intra/all_gather": [256, 512],
                         "intra/all_reduce": [512, 1024], "intra/reduce_scatter": [256, 512]}  # fmt: skip
    else:
        assert found["nic/all_to_all"] == [256, 512]
        assert all(name.startswith("nic/") for name in found)
    assert all(seconds > 0 for timed in points.values() for _, seconds in timed)


def test_all_ranks_get_the_same_links_and_one_rank_alone_has_none():
    first, second = on_ranks(2, partial(calibrate_group, largest=1 << 14, rounds=2, compute_s=1e-5, pause_s=0.0))
    assert first == second
    assert set(first) == {f"intra/{name}" for name in ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")}
    with pytest.raises(RuntimeError, match="expected 2 ranks or more"):
        on_ranks(1, calibrate_group)


def test_the_command_saves_what_it_measured(tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "topology.json"
    monkeypatch.setattr(calibrate, "launch", lambda size, run, *args: on_ranks(size, lambda group: run(group, *args)))
    monkeypatch.setattr(calibrate, "random_row_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(calibrate, "IDS", (64, 256, 1024, 4096))
    monkeypatch.setitem(calibrate.WORKLOAD, "rows", 1000)
    monkeypatch.setattr(calibrate, "_compute", lambda seconds: None)
    monkeypatch.setattr(calibrate.time, "sleep", lambda seconds: None)
    command.main(["calibrate", "--largest", "8192", "--out", str(out)])
    topology = Topology.load(out)
    assert (topology.nodes, topology.ranks_per_node) == (1, 2)
    assert topology.device.flops > 0
    assert set(topology.kernels) == {f"cpu/{op}" for op in CASES}
    assert set(CASES) <= set(OPS)
    assert all(link.seconds(1e9) > 0 for link in topology.kernels.values())
    assert set(topology.links) == {f"intra/{n}" for n in ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")}
    assert all(link.source.startswith("loopback, gloo, 1 x 2 ranks") for link in topology.links.values())
    assert "wrote" in capsys.readouterr().out


def test_the_command_says_what_it_lacks(monkeypatch):
    with pytest.raises(SystemExit, match="expected 2 ranks or more, given 1 x 1"):
        command.main(["calibrate", "--ranks-per-node", "1"])
    monkeypatch.setattr(calibrate, "available", lambda: "an emulated cluster needs root")
    with pytest.raises(SystemExit, match="an emulated cluster needs root"):
        command.main(["calibrate", "--nodes", "2"])
