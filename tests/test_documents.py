"""What the documents name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "experiments").glob("*/README.md"))]
FOLDERS = "kernels|comm|models|experiments|paper_figs|tests"


def meanings(name: str) -> tuple[Path, ...]:
    """A path, a module, or the name of an experiment."""
    return ROOT / name, ROOT / f"{name}.py", ROOT / f"experiments/{name}.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_files_that_a_document_names_exist(document):
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.M | re.S)
    named = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)) | set(re.findall(r"\]\(([^)#:]+)\)", text))
    toys = {name for name in named if "row_dot" in name}  # of a recipe
    assert [name for name in sorted(named - toys) if not any(path.exists() for path in meanings(name))] == []
