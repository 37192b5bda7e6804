"""Every Triton kernel compiles for every target without a GPU: no spills, 16-byte row loads where they can be."""

import json
import os
import subprocess
import sys

import pytest

import kernels
from kernels.aot import TARGETS


@pytest.fixture(scope="module")
def reports():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_triton_kernel_compiles_without_spills_and_with_wide_row_loads(reports):
    hinted = [report for report in reports if report["hints"]]
    for target in TARGETS:
        compiled = [report["variant"] for report in hinted if report["target"] == target]
        for op in kernels.OPS:
            assert any(name.startswith(op) for name in compiled), f"expected variants of {op} for {target}"
    assert [report for report in hinted if report["spills"]] == []
    wide = [report for report in hinted if report["row_bytes"]]
    assert wide
    assert [report for report in wide if report["widest_load"] != report["row_bytes"]] == []
    # The same kernels when nothing is known of alignment: the check above can fail.
    unhinted = [report for report in reports if not report["hints"]]
    assert unhinted
    assert all(report["widest_load"] < report["row_bytes"] for report in unhinted)


def test_addresses_of_rows_are_64_bit_products(reports):
    """Where row times dim may pass 2^31; test_addresses.py reads such rows on the backends that run here."""
    of_rows = [r for r in reports if r["variant"].startswith(("pooled_", "weights_grad", "segment_grads"))]
    assert of_rows
    assert [report for report in of_rows if report["narrow_products"]] == []


def test_refuses_to_compile_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "unset it" in done.stderr
