import pytest

from comm.topology import Link, Topology
from kernels.cost import Device


def test_json_reads_back(tmp_path):
    links = {"intra/all_to_all": Link(1e-6, 3e10, "measured here"), "nic/all_to_all": Link(2e-5, 1e9, "a data sheet")}
    topology = Topology(4, 2, links, Device("cpu", 3.5e10, 1e11, "measured here"))
    topology.save(tmp_path / "new" / "topology.json")
    assert Topology.load(tmp_path / "new" / "topology.json") == topology
    assert topology.world == 8


def test_a_link_takes_its_start_up_per_message_and_its_rate_per_byte():
    assert Link(0.5, 4.0, "made up").seconds(8.0, messages=3) == pytest.approx(0.5 * 3 + 2.0, rel=2**-52)
