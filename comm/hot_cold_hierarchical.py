"""Popular rows on every rank, the rest as in `hierarchical`: partial sums of cold rows travel through the nodes."""

from ._pooled_tiers import PooledTiers
from .hierarchical import Hierarchical


class HotColdHierarchical(PooledTiers, Hierarchical):
    """See the module's docstring."""


STRATEGY = HotColdHierarchical
