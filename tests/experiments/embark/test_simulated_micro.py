from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.embark._micro import AHEAD, PARTS, micro_batched, seconds
from experiments.embark._simulated import Job, table_rows

STAGES = ("gather", "send", "combine", "dense", "grad_send", "node_reduce", "grad_rail", "apply", "dense_reduce")
times = st.fixed_dictionaries({name: st.floats(0.01, 10.0) for name in (*STAGES, *AHEAD)})


def network(parts):
    return sum(parts[name] for name in ("send", "grad_send", "node_reduce", "grad_rail", "dense_reduce"))


def compute(parts):
    return sum(parts[name] for name in ("gather", "combine", "dense", "apply"))


@given(times)
def test_without_latency_more_parts_are_never_slower_and_no_resource_is_beaten(parts):
    found = [seconds(parts, parts, count) for count in (1, 2, 4, 8)]
    for fewer, more in pairwise(found):
        assert more <= fewer * (1 + 1e-12)
    assert found[-1] >= max(network(parts), compute(parts)) * (1 - 1e-12)


@given(times)
def test_one_part_is_the_chain_of_stages_with_the_dense_reduction_after_the_gradients(parts):
    values = parts["gather"] + parts["send"] + parts["combine"] + parts["dense"]
    values += parts["grad_send"] + parts["node_reduce"] + parts["grad_rail"]
    chain = values + max(parts["apply"], parts["dense_reduce"])
    assert seconds(parts, parts, 1) == pytest.approx(max(chain, sum(parts[name] for name in AHEAD)))


def test_every_part_pays_the_latency_again():
    parts = dict.fromkeys((*STAGES, *AHEAD), 0.0) | {"send": 3.0, "dense": 1.0}
    instant = parts | {"send": 2.0}
    assert seconds(parts, instant, 1) == pytest.approx(4.0)
    assert seconds(parts, instant, 2) == pytest.approx(2 * (1.0 + 1.0) + 0.5)


def test_the_best_number_of_parts_is_taken():
    job = Job("dcnv2", 2)
    found, count = micro_batched(table_rows(job), job.workload, job.topology)
    assert count in PARTS
    assert found <= job.price(table_rows(job)).step_s
