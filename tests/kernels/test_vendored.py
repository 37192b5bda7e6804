"""`kernels/` can be copied into another project under any name, and lives beside the original in one process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernels

SCRIPT = """
import sys
import torch
import my_ops
assert "kernels" not in sys.modules
ids, offsets = torch.tensor([2, 0, 2]), torch.tensor([0, 1, 3])
table = torch.arange(12.0).view(3, 4)
ours = [my_ops.pooled_lookup(table, ids, offsets, backend=backend) for backend in my_ops.BACKENDS]
import kernels
theirs = kernels.pooled_lookup(table, ids, offsets, backend="torch")
assert my_ops.__file__ != kernels.__file__
assert all(torch.equal(out, theirs) for out in ours)
assert my_ops.unique_ids(ids, backend="torch").rows.tolist() == [0, 2]
print("both")
"""


def test_a_copy_under_another_name_works_beside_the_original(tmp_path):
    source = Path(kernels.__file__).parent
    shutil.copytree(source, tmp_path / "my_ops", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(source.parent)!r}]\n{SCRIPT}"],
        env=dict(os.environ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "both"
