"""The columns of each table over several ranks, all rows on each: the work is shared, ids go to all.

Every holder pools its own columns, which travel once. A row-wise optimizer exchanges one number per distinct row.
"""

from ._pooled import PooledExchange


class Columnwise(PooledExchange):
    """A pooled exchange in which every block of columns has one row part."""


STRATEGY = Columnwise
