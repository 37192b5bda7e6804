"""`hot_cold` whose cold rows are de-duplicated again per node, as in `unique_node`: the same bits."""

from .hot_cold import HotCold
from .unique_node import UniqueNode


class HotColdNode(HotCold, UniqueNode):
    """See the module's docstring."""


STRATEGY = HotColdNode
