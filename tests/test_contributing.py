"""CONTRIBUTING.md is followed to the letter, in a copy of the project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "comm", "models", "experiments", "paper_figs", "tests")
RECIPES = {
    match["path"]: match["code"]
    for match in re.finditer(
        r"^```python\n# (?P<path>\S+)\n(?P<code>.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S
    )
}


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text, f"{path} has no {before!r}"
    path.write_text(text.replace(before, after, 1), "utf-8")


def passes(copy: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def checks_pass(copy: Path, *arguments: str) -> None:
    passes(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    copied = tmp_path_factory.mktemp("copy")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copied / folder, ignore=shutil.ignore_patterns("__pycache__", "results", "out"))
    shutil.copy(ROOT / "pyproject.toml", copied)
    shutil.copy(ROOT / "CONTRIBUTING.md", copied)
    for path, code in RECIPES.items():
        (copied / path).parent.mkdir(parents=True, exist_ok=True)
        (copied / path).write_text(code, "utf-8")
    edit(copied / "kernels/__init__.py", "from .row_copy import", "from .row_dot import row_dot\nfrom .row_copy import")
    edit(copied / "kernels/__init__.py", 'OPS = ("', 'OPS = ("row_dot", "')
    edit(copied / "comm/plan.py", '    "unique_node",\n', '    "unique_node",\n    "unique_wide",\n')
    edit(copied / "comm/plan.py", '    "unique_node": _ANY,\n', '    "unique_node": _ANY,\n    "unique_wide": _ANY,\n')
    return copied


def test_the_recipes_promise_the_files_they_need():
    folders = [Path(path).parts[0] for path in RECIPES]
    assert {name: folders.count(name) for name in set(folders)} == {
        "kernels": 6,
        "comm": 1,
        "experiments": 1,
        "paper_figs": 1,
    }


@pytest.mark.slow
def test_the_kernel_meets_its_contract_and_compiles(copy):
    checks_pass(copy, "tests/kernels/test_contract.py", "-k", "row_dot")
    checks_pass(copy, "tests/kernels/test_aot.py")


@pytest.mark.slow
def test_the_strategy_keeps_the_weights_and_predicts_its_bytes(copy):
    passes(
        copy,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/comm/test_bytes.py",
        "-k",
        "predicted and unique_wide",
    )
    passes(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/comm/test_random_plans.py")


@pytest.mark.slow
def test_the_experiment_runs_and_its_figure_is_drawn(copy):
    passes(copy, "-m", "experiments", "run", "kernels/toy_dot", "--laptop", "--out", "runs")
    passes(copy, "-m", "paper_figs", "kernels/toy_dot", "--records", "runs", "--out", "runs/figures")
    assert (copy / "runs/figures/kernels/toy_dot.svg").exists()
    passes(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/experiments/test_experiments.py", "-k", "toy_dot"
    )
