"""`python -m experiments.bench_compare BASE`: the benchmarks at git ref BASE and here, in turn; prints what got slower.

BASE is checked out in a temporary worktree. Both sides run ROUNDS times, alternating which goes first; a benchmark is
slower when the ratio of minimum times here / BASE is above BOUND in every round: one disturbed round decides nothing.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.environment import ROOT

ROUNDS = 3
BOUND = 1.1
"""A choice: below a tenth, neighbours on a shared machine explain a difference as well as a change does."""


def minima(checkout: Path, python: str = sys.executable) -> dict[str, float]:
    """Run the benchmarks of a checkout; the minimum time of each in seconds, by name.

    Raises:
        RuntimeError: the run failed, or the checkout has no benchmarks.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "bench.json"
        options = ["-q", "-o", "python_files=bench_*.py", f"--benchmark-json={report}"]
        command = [python, "-m", "pytest", "tests/bench", *options]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the benchmarks of {checkout} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
        benchmarks = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    return {b["fullname"]: b["stats"]["min"] for b in benchmarks}


def slower(rounds: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, list[float]]:
    """Ratios here / base by round, of the benchmarks that are above BOUND in every one of `rounds` (base, here)."""
    common = set.intersection(*(set(side) for pair in rounds for side in pair))
    ratios = {name: [here[name] / base[name] for base, here in rounds] for name in sorted(common)}
    return {name: values for name, values in ratios.items() if min(values) > BOUND}


def main(base: str) -> int:
    """Compare with `base`; 1 if anything got slower."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), base], check=True)
        try:
            rounds = []
            for number in range(ROUNDS):
                console.print(f"round {number + 1} of {ROUNDS}")
                first, second = (tree, ROOT) if number % 2 == 0 else (ROOT, tree)
                times = {first: minima(first), second: minima(second)}
                rounds.append((times[tree], times[ROOT]))
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    found = slower(rounds)
    compared = set.intersection(*(set(side) for pair in rounds for side in pair))
    console.print(
        f"{len(compared)} benchmarks compared with {base}, {len(found)} slower than {BOUND} times in every round"
    )
    table = Table("slower", "median ratio here / base", "least", "most")
    for name, ratios in sorted(found.items(), key=lambda item: -statistics.median(item[1])):
        table.add_row(name, *(f"{value:.2f}" for value in (statistics.median(ratios), min(ratios), max(ratios))))
    if found:
        console.print(table)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
