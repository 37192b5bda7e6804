"""Arms, streams and simulated steps of fec: what experiments stand on."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
import torch

from comm.group import simulate
from comm.schedule import Phase
from comm.topology import Link, Topology
from experiments.data.counting import count_use, keys_of_tables
from experiments.data.generator import generate
from experiments.fec._arms import ARMS, FULL, MICRO
from experiments.fec._bench import Bench, Rows, ahead, frames_of, timed
from experiments.fec._cell import Cell, batches_for, tiny, turns
from experiments.fec._simulated import Simulation
from experiments.fec._streams import ZipfClicks, open_stream
from experiments.fec.lookahead import shares
from experiments.fec.throughput import MODELS, weights
from kernels import Bags, Optimizer, TableSpec
from kernels.cost import Device

STREAM = ZipfClicks(4000, max_rows=50, dim=4)


def test_the_uncapped_tables_are_those_of_kaggle():
    assert sum(table.rows for table in ZipfClicks(1).tables) == 33_762_577


def test_a_sample_depends_on_its_position_alone():
    whole = [b.bags.ids.view(26, -1) for b in STREAM.batches(40)]
    parts = [[b.bags.ids.view(26, -1) for b in STREAM.batches(40, rank, 3)] for rank in range(3)]
    for at, batch in enumerate(whole):
        assert torch.equal(torch.cat([parts[rank][at] for rank in range(3)], dim=1), batch)
    late = next(iter(STREAM.batches(40, start=7)))
    assert torch.equal(late.bags.ids.view(26, -1), whole[7])


def test_ids_are_as_skewed_as_asked_for():
    ids = next(iter(ZipfClicks(20_000, alpha=1.2, max_rows=1000).batches(20_000))).bags.ids.view(26, -1)[2]
    counts = ids.unique(return_counts=True)[1].sort(descending=True).values.double()
    law = torch.arange(1, 1001).double() ** -1.2
    # a binomial share: four standard deviations of the estimate
    for rank in (0, 3, 10):
        p = float(law[rank] / law.sum())
        assert abs(float(counts[rank]) / 20_000 - p) < 4 * (p / 20_000) ** 0.5


def test_drift_moves_the_share_of_rows_that_it_says():
    def ids(epoch):
        stream = ZipfClicks(5000, alpha=0.0, max_rows=5000, epoch=epoch, moved=0.3)
        return next(iter(stream.batches(5000))).bags.ids.view(26, -1)[2]

    stays = [float((ids(epoch) == ids(0)).double().mean()) for epoch in range(3)]
    # uniform ranks: each is moved by chance 0.3 an epoch
    assert stays[0] == 1.0
    assert [abs(s - 0.7**e) < 4 * (0.25 / 5000) ** 0.5 for e, s in enumerate(stays)] == [True] * 3


def test_a_log_too_short_for_its_batches_is_refused(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text("".join("0" + "\t1" * 13 + "\tab" * 26 + "\n" for _ in range(30)))
    assert Cell(stream=str(path), batch=64, counted=2).local_batch(1) == 30 // (4 * 3)
    with pytest.raises(ValueError, match=r"expected 31 lines or more, given 30"):
        open_stream(str(path), 31, 1.0, 100, 4)
    with pytest.raises(FileNotFoundError, match="nothing"):
        open_stream("nothing.tsv", 1, 1.0, 100, 4)


def test_the_stand_in_takes_its_time_and_nothing_else_does():
    for name, parts, least in (
        ("dense", 1, 0.02),
        ("dense.1", 4, 0.005),
        ("+1/dense.0", 4, 0.005),
        ("dense_reduce", 1, 0),
    ):
        phase = timed(Phase(name, lambda x: x + 1, ("x",), ("y",), "compute"), 0.02, parts)
        start = perf_counter()
        frame = {"x": 1}
        phase(frame)
        assert frame["y"] == 2
        assert perf_counter() - start >= least
    assert timed(Phase("dense_reduce", len, (), (), "network"), 1.0).run is len


TABLES = (TableSpec("a", 40, 4), TableSpec("b", 7, 4))
HOT = [(0, 3), (1,)]


def run_arms(group, names, dense_s=0.0):
    draw = torch.Generator().manual_seed(group.rank)
    bags = []
    for _ in range(8):
        ids = torch.cat([torch.randint(0, t.rows, (6,), generator=draw) for t in TABLES])
        bags.append(Bags(ids, torch.arange(13)))
    frames = frames_of(bags, [torch.zeros(6)] * 8, [torch.zeros(6, 1)] * 8, group.size)
    rows = Rows(47, 3, 4, Optimizer("rowwise_adagrad"))
    bench = Bench(group, TABLES, rows)
    found = {}
    for name in names:
        rows.values.zero_()
        for state in rows.states:
            state.zero_()
        _, iterations = bench.burst(ARMS[name], HOT, frames[: 5 + ahead(ARMS[name])], dense_s, 0)
        found[name] = [it.loss for it in iterations]
    return found


def test_arms_over_one_memory_learn_the_same():
    names = ("raw", "unique", "unique_node", "tier", "prefetch", FULL, "parts", MICRO)
    for found in simulate(4, lambda group: run_arms(group, names), 2):
        assert {len(losses) for losses in found.values()} == {5}
        assert all(found[name] == found["unique"] for name in names if "parts" not in name)
        assert found[MICRO] == found["parts"]


def test_bytes_of_a_simulated_step_are_those_that_a_group_counts():
    cell = replace(tiny(batch=8), ranks_per_node=2)
    links = {f"{kind}/all_to_all": Link(1e-4, 1e7, "made up") for kind in ("nic", "intra")}
    simulation = Simulation(cell, Topology(2, 2, links, Device("none", 1.0, 1.0, "none")))

    def run(group, name):
        parts = cell.batches(4, group.rank)
        frames = frames_of([p.bags for p in parts], [p.label for p in parts], [p.dense for p in parts], group.size)
        hot = simulation.hot(ARMS[name])
        _, iterations = Bench(group, simulation.tables).burst(ARMS[name], hot, frames, 0.0, 0)
        return iterations

    for name in ("raw", "unique", "unique_node", "tier"):
        ranks = simulate(4, lambda group, name=name: run(group, name), 2)
        counted = torch.stack([sum(its[1].sent.values()) for its in ranks])
        assert simulation.step(name).bytes.tolist() == counted.tolist(), name
    # a pipeline's iteration moves rows of several batches: the same bytes, but for what neighbours differ in
    line = simulation.step(FULL)
    assert line.bytes.sum() > 0
    assert max(line.exposed) < max(simulation.step("unique").exposed)


def test_a_cell_counts_before_the_batches_that_it_trains_on():
    cell = tiny()
    use = cell.count(3)
    assert (use.batches, use.world) == (cell.counted, 2)
    first = next(iter(cell.open(3).batches(32, 0, 2, cell.counted)))
    assert torch.equal(cell.batches(3, 0)[0].bags.ids, first.bags.ids)
    assert batches_for(turns(("unique", FULL)), 4) == 2 + 4 + 2


def test_shares_by_sets():
    a, b = np.array([1, 2, 3]), np.array([3, 4])
    found = shares([[a], [b], [a]], 1)
    # of b one key of two follows a; of a one of three follows b; 3 is in all batches, 1 and 2 in two of three
    assert found["safe_share"] == pytest.approx((1 + 2) / (2 + 3))
    assert found["rest_share"] == 1.0
    assert shares([[a], [b], [a]], 2)["safe_share"] == 0.0
    with pytest.raises(ValueError, match="expected more than depth 3, given 3"):
        shares([[a], [b], [a]], 3)


def test_models_differ_in_what_they_compute():
    tables = tuple(TableSpec(f"t{i}", 10, 8) for i in range(3))
    sizes = {model: weights(model, tables) for model in MODELS}
    assert sizes["deepfm"] == 13 + (13 + 3 * 7) * 400 + 400 * 400 * 2 + 400
    assert sizes["wide_deep"] == 13 + (13 + 3 * 7) * 1024 + 1024 * 512 + 512 * 256 + 256
    assert len(set(sizes.values())) == len(MODELS)


def test_keys_of_tables_are_those_that_the_counting_pass_counts():
    stream = generate(64, max_rows=40, dim=4)
    use = count_use(stream, 32, 2, 2)
    keys = np.concatenate([keys_of_tables(b.bags, stream.tables) for b in stream.batches(32)])
    assert set(use.keys.tolist()) == set(keys.tolist())
    with pytest.raises(ValueError, match=r"2 whole batches or more, given 64 samples in batches of 48"):
        count_use(stream, 48, 2, 2)
