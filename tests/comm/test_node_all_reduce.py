"""The canonical all-reduce through the nodes: the bits of the flat one, the bytes as predicted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm.canonical import canonical_all_reduce, node_all_reduce, node_bytes, touched_bytes
from comm.cost import loads
from comm.group import simulate


@given(st.integers(0, 30), st.sampled_from([(4, 2), (6, 2), (6, 3), (2, 1), (4, 4)]), st.integers(0, 2**32))
def test_the_bits_are_those_of_the_flat_sum_and_the_bytes_those_predicted(height, shape, seed):
    world, local = shape
    xs = torch.randn(world, height, 3, generator=torch.Generator().manual_seed(seed))

    def run(group):
        x = xs[group.rank]
        return node_all_reduce(group, x, "n"), canonical_all_reduce(group, x, "f"), dict(group.sent)

    found = simulate(world, run, local)
    for through, flat, _ in found:
        assert torch.equal(through, flat)
    for label, bytes_ in node_bytes(height, 3 * 4, world, local).items():
        assert torch.stack([sent[f"n.{label}"] for *_, sent in found]).tolist() == bytes_.tolist()


@pytest.mark.parametrize("local", [2, 4])
def test_a_node_sends_fewer_bytes_by_its_number_of_ranks(local):
    world = 2 * local
    flat = sum(loads(b, local)["nic"] for b in touched_bytes(240, 15, torch.float32, world).values())
    through = sum(loads(b, local)["nic"] for b in node_bytes(240, 64, world, local).values())
    assert flat == local * through
