"""`python -m experiments._cluster_call FOLDER`: one rank of `experiments.cluster.run`, started by it.

FOLDER/call holds what to call, FOLDER/result-<rank> is where the result goes.
"""

import os
import pickle
import sys
from pathlib import Path

from comm.group import TorchGroup, rank_main


def call(group: TorchGroup, folder: Path) -> None:
    """Call what the folder says with `group`, and leave there what it returns."""
    with (folder / "call").open("rb") as file:
        sys.path[:], where = pickle.load(file)
        os.chdir(where)
        function, arguments = pickle.load(file)  # second, because it imports the function's module
    result = function(group, *arguments)
    (folder / f"result-{group.rank}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    rank_main(call, Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the result is written; threads of gloo that outlive their groups would end a normal exit in an abort
