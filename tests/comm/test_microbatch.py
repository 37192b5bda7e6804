"""Parts of a batch under one update: the bits of the oracle with that grouping, whatever travels when."""

import pytest

from comm.counts import Counts
from comm.group import simulate
from comm.microbatch import MicroBatch
from comm.plan import Plan
from comm.travel import Travel
from comm.when import When
from models.embedding import ShardedEmbedding
from models.executor import Executor
from models.micro_step import MicroStep
from tests.comm import oracle
from tests.comm.test_exact import BOTH_KINDS, CLUSTERS, assert_same, run, trained
from tests.comm.workload import CUTS, GLOBAL_BATCH, LR, Work, batch_of, digest, real_model


@BOTH_KINDS
@pytest.mark.parametrize(("world", "ranks_per_node"), CLUSTERS)
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_are_the_oracle_with_its_grouping(parts, world, ranks_per_node, kind):
    work = Work("unique", steps=4, parts=parts, **kind)
    assert_same(run(work, world, ranks_per_node), oracle.train(work.plan(world), work, ranks_per_node))


@BOTH_KINDS
def test_one_part_is_the_plain_step(kind):
    assert_same(run(Work("unique", parts=1, **kind), 4, 2), trained(Work("unique", **kind), 4, 2))


def test_overlap_and_delays_change_no_bit():
    work = Work("unique", optimizer="rowwise_adagrad", steps=4, parts=3)
    shaken = Work("unique", optimizer="rowwise_adagrad", steps=4, parts=3, overlap=True, delays=1)
    assert_same(run(work, 4, 2), run(shaken, 4, 2))


def test_mutation_gradients_sent_before_the_last_part_is_done(monkeypatch):
    work = Work("unique", optimizer="sgd", weighted=True, steps=4, parts=2)
    dedup = MicroBatch.dedup

    def early(self, bags):
        asking = dedup(self, bags)
        return asking._replace(last=asking.first)

    expected = digest(run(work, 4))
    monkeypatch.setattr(MicroBatch, "dedup", early)
    assert digest(run(work, 4)) != expected


def test_bytes_sent_are_those_predicted():
    work, world = Work("unique", weighted=True), 4
    parts = [batch_of(work, 0, *CUTS[world][rank : rank + 2]) for rank in range(world)]

    def step(group):
        embedding = ShardedEmbedding(work.plan(world), group, backend="cpu")
        bags, dense, label = parts[group.rank]
        frame = {"step": 0, "lr": LR, "training": True, "bags": bags, "dense": dense, "label": label}
        Executor().run(
            MicroStep(real_model(embedding), None, parts=3).schedule(), frame | {"global_batch": GLOBAL_BATCH}
        )
        team = embedding.teams[0]
        exchange = MicroBatch(team.strategy, 3)
        batch = [bags for bags, _, _ in parts]
        travel = Travel.of(team.strategy.shards, [batch], When(prefetch=False, deferral=False, parts=3))
        predicted = exchange.sent(Counts.of(team.strategy.shards, batch), travel[0])
        return [(group.sent[f"{team.label}.{name}"], bytes_[group.rank]) for name, bytes_ in predicted.items()]

    for of_rank in simulate(world, step):
        assert all(counted.tolist() == predicted.tolist() for counted, predicted in of_rank)


def test_other_strategies_are_refused():
    def build(group):
        embedding = ShardedEmbedding(Plan.uniform(Work().tables, "rowwise", 2), group, backend="cpu")
        MicroStep(real_model(embedding), None).schedule()

    with pytest.raises(RuntimeError, match="expected tables under 'unique' or 'hot_cold', given 'rowwise"):
        simulate(2, build)
