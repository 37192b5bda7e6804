"""Blocks of columns x row parts, each shard on any rank: EMBark's flexible 3-D sharding, without its regular grid."""

from ._pooled import PooledExchange


class Gridwise(PooledExchange):
    """A pooled exchange over any grid of shards."""


STRATEGY = Gridwise
