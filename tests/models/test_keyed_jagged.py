import os
import subprocess
from pathlib import Path

import pytest
import torch

from kernels import Bags, TableSpec
from models.keyed_jagged import bags_of

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers/bin/python"
TABLES = (TableSpec("a", 10, 4), TableSpec("b", 10, 4))


class Jagged:
    """As much of a KeyedJaggedTensor as is read."""

    def __init__(self, keys, values, lengths, weights=None):
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def offsets(self):
        return torch.cat([torch.zeros(1, dtype=torch.int32), self._lengths.cumsum(0, dtype=torch.int32)])

    def weights_or_none(self):
        return self._weights


def features(keys, weighted=False):
    """Two samples a key: key k has the ids [k0], [k1, k2] of its position."""
    values = torch.cat([torch.arange(3) + 10 * "abc".index(key) for key in keys])
    lengths = torch.tensor([1, 2] * len(keys), dtype=torch.int32)
    return Jagged(keys, values, lengths, values / 2 if weighted else None)


@pytest.mark.parametrize("keys", [["a", "b"], ["b", "a"], ["c", "a", "b"]])
@pytest.mark.parametrize("weighted", [False, True])
def test_keys_become_tables(keys, weighted):
    bags = bags_of(features(keys, weighted), TABLES)
    assert bags.ids.tolist() == [0, 1, 2, 10, 11, 12]
    assert bags.offsets.tolist() == [0, 1, 3, 4, 6]
    assert (bags.weights is None) if not weighted else torch.equal(bags.weights, bags.ids / 2)


def test_the_same_keys_share_memory():
    given = features(["a", "b"])
    assert bags_of(given, TABLES).ids.data_ptr() == given.values().data_ptr()


def test_a_table_without_a_key_is_named():
    with pytest.raises(ValueError, match=r"missing \['b'\]"):
        bags_of(features(["a", "c"]), TABLES)


ROUND_TRIP = """
import torch
from kernels import Bags, TableSpec
from models.keyed_jagged import bags_of, keyed_jagged
tables = (TableSpec("a", 10, 4), TableSpec("b", 10, 4))
bags = Bags(torch.arange(6), torch.tensor([0, 1, 3, 4, 6]), torch.rand(6))
features = keyed_jagged(bags, tables)
assert features.to_dict()["b"].to_dense()[1].tolist() == [4, 5]
back = bags_of(features, tables)
assert all(torch.equal(getattr(back, f), getattr(bags, f)) for f in ("ids", "offsets", "weights"))
turned = bags_of(features.permute([1, 0]), tables)
assert all(torch.equal(getattr(turned, f), getattr(bags, f)) for f in ("ids", "offsets", "weights"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEERS.exists(), reason="needs the peers' environment: make bench-peers")
def test_torchrecs_own_goes_round():
    done = subprocess.run(
        [str(PEERS), "-c", ROUND_TRIP], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_bags_are_checked():
    with pytest.raises(ValueError, match="ids"):
        bags_of(Jagged(["a", "b"], torch.zeros(6), torch.tensor([1, 2, 1, 2])), TABLES)
    assert isinstance(bags_of(features(["a", "b"]), TABLES), Bags)
