"""The rows of each table over several ranks, by modulo or by range: each rank pools its share, the partial sums are
added.

Balanced whatever the tables' sizes; the price is one partial sum per bag and shard. EMBark's reduction-based cluster.
"""

from ._pooled import PooledExchange


class Rowwise(PooledExchange):
    """A pooled exchange in which a table has as many row parts as its placement names ranks."""


STRATEGY = Rowwise
