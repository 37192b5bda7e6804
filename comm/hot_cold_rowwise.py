"""Popular rows on every rank, the rest as in `rowwise`: partial sums of cold rows travel, hot rows do not."""

from ._pooled_tiers import PooledTiers
from .rowwise import Rowwise


class HotColdRowwise(PooledTiers, Rowwise):
    """See the module's docstring."""


STRATEGY = HotColdRowwise
