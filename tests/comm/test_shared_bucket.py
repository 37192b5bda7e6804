"""Hot rows and dense gradients in one message: the bits of two."""

import pytest

from comm.group import simulate
from comm.pipeline import Pipeline, Staged
from comm.when import When
from models.executor import Executor
from models.pipeline import PipelinedTraining
from models.prefetch_step import PrefetchStep
from models.shared_bucket import share_bucket, share_bucket_of
from models.step import TrainingStep
from tests.comm.fec_work import RANKS_PER_NODE, Arm, build, frames, result_of, synchronous
from tests.comm.workload import digest


def trained(arm: Arm, world: int):
    def trains(group):
        model, optimizer = build(arm, group)
        if arm.when:
            pipeline = share_bucket_of(PrefetchStep(model, optimizer, when=arm.when).pipeline(), group)
        else:
            schedule = share_bucket(TrainingStep(model, optimizer).schedule(), group)
            pipeline = Pipeline((Staged(0, phase) for phase in schedule.phases), schedule.inputs)
        training = PipelinedTraining(pipeline, Executor(arm.overlap), group)
        losses = [frame["loss"] for frame in training.steps(frames(arm, group))]
        assert not [label for label in group.sent if "hot_reduce" in label]
        return result_of(model, losses, group)

    return simulate(world, trains, RANKS_PER_NODE[world])


@pytest.mark.parametrize("when", [None, When(), When(parts=2)])
def test_one_message_gives_the_bits_of_two(when):
    arm = Arm("hot_cold", when, "adagrad")
    parts = 2 if when and when.parts == 2 else 0
    assert {digest(r) for r in trained(arm, 4)} == {synchronous("adagrad", "iid", arm.steps, 4, parts)}


def test_a_step_without_hot_rows_is_refused():
    with pytest.raises(RuntimeError, match="expected tables under 'hot_cold'"):
        trained(Arm(), 2)
