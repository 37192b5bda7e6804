"""Each table whole on one rank: its bags are pooled there and travel once. Source: the model parallelism of DLRM."""

from ._pooled import PooledExchange


class Tablewise(PooledExchange):
    """A pooled exchange in which every table has one row part."""


STRATEGY = Tablewise
