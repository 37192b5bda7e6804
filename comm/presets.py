"""Clusters that are at hand only on paper, as Topologies; every number says where it comes from."""

from kernels.cost import Device

from .topology import Link, Topology

COLLECTIVES = ("all_to_all", "all_gather", "all_reduce", "reduce_scatter")


def h100x8(nodes: int) -> Topology:
    """`nodes` x 8 GPUs as in a DGX H100: NVLink inside, one 400 Gbit/s NIC a GPU between nodes.

    Published: 3.35 TB/s memory, 450 GB/s NVLink each way (NVIDIA H100 data sheet), 50 GB/s a NIC (the comment "3000/50
    eos" in HugeCTR's benchmark script). Assumed: 8 and 20 microseconds a collective, 400 Tflop/s of dense layers, links
    that reach their full rate whatever the message.
    """
    intra = Link(8e-6, 450e9, "NVIDIA H100 data sheet; latency assumed")
    nic = Link(20e-6, 50e9, "HugeCTR benchmark.sh, NDR 400; latency assumed")
    links = {f"{kind}/{name}": link for kind, link in (("intra", intra), ("nic", nic)) for name in COLLECTIVES}
    device = Device("H100", 3.35e12, 400e12, "NVIDIA H100 data sheet; 400 Tflop/s assumed")
    return Topology(nodes, 8, links, device, nics=8)
