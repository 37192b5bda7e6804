"""`python -m experiments.slow_tests`: the long tests within a stated bound; a pass is dated in the results."""

import json
import subprocess
import sys
import time
from xml.etree import ElementTree

from rich.console import Console

from experiments.environment import ROOT, environment
from experiments.record import now

BOUND_S = 1800
PASS = ROOT / "experiments" / "results" / "test_slow.json"
REPORT = ROOT / "runs" / "test_slow.xml"


def main() -> int:
    """Run `pytest -m slow`; on a pass write date, commit, machine, tests, seconds to PASS. Returns the exit status."""
    console = Console()
    REPORT.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "slow and not gpu", "-n", "2", f"--junitxml={REPORT}"]
    try:
        status = subprocess.run(command, cwd=ROOT, check=False, timeout=BOUND_S).returncode
    except subprocess.TimeoutExpired:
        console.print(f"the slow tests did not end within their bound of {BOUND_S} s")
        return 1
    if status != 0:
        return status
    seconds = round(time.monotonic() - began, 1)
    suites = ElementTree.parse(REPORT).getroot().iter("testsuite")
    counts = [{key: int(suite.attrib[key]) for key in ("tests", "skipped")} for suite in suites]
    env = environment()
    last = {
        "time": now(),
        "tests": sum(c["tests"] - c["skipped"] for c in counts),
        "skipped": sum(c["skipped"] for c in counts),
        "seconds": seconds,
        "bound_s": BOUND_S,
        "env": env,
    }
    PASS.write_text(json.dumps(last, indent=2) + "\n", encoding="utf-8")
    console.print(f"passed in {seconds} s -> {PASS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
