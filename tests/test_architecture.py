"""What import-linter (run by `make lint`) cannot say about who may import what."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "comm", "models", "experiments", "paper_figs")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Absolute names a file imports, `from a import b` as `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses_torch_distributed(path: Path) -> bool:
    names = {
        ast.unparse(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)
    }
    return any(name.startswith("torch.distributed") for name in names | imports(path))


def test_torch_distributed_is_called_in_one_file_only():
    """But for its checkpoints, which send nothing."""
    users = {path.relative_to(ROOT).as_posix() for path in SOURCES if uses_torch_distributed(path)}
    assert users <= {"comm/group.py", "models/checkpoint.py"}


def test_kernels_import_each_other_relatively_so_that_the_folder_can_be_vendored():
    for path in (ROOT / "kernels").rglob("*.py"):
        assert not {name for name in imports(path) if name.split(".")[0] in FOLDERS}, path


def test_figures_read_records_and_nothing_else_of_the_project():
    allowed = ("experiments.record", "experiments.names", "paper_figs")
    for path in (ROOT / "paper_figs").rglob("*.py"):
        ours = {name for name in imports(path) if name.split(".")[0] in FOLDERS}
        assert all(name.startswith(allowed) for name in ours), (path, ours)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_one_idea_of_at_most_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_no_init_file_in_tests_shadows_the_package_under_test():
    assert not list((ROOT / "tests").rglob("__init__.py"))
