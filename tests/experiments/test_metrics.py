import math

import pytest
import torch

from experiments.metrics import ClickMetrics


def evaluate(logits, labels):
    metrics = ClickMetrics()
    metrics.update(torch.tensor(logits, dtype=torch.float64), torch.tensor(labels))
    return metrics.compute()


def test_values_are_the_written_out_formulas():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, dtype=torch.float64, generator=generator).round(decimals=1)  # ties on purpose
    labels = (torch.rand(200, generator=generator) < torch.sigmoid(logits)).int()
    got = evaluate(logits.tolist(), labels.tolist())
    pairs = [(p, n) for p in logits[labels == 1].tolist() for n in logits[labels == 0].tolist()]
    auc = sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)
    probabilities = [1 / (1 + math.exp(-z)) for z in logits.tolist()]
    loss = -sum(math.log(p if y else 1 - p) for p, y in zip(probabilities, labels.tolist(), strict=True)) / 200
    rate = int(labels.sum()) / 200
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    # fp64 sums of 200 terms of order 1: 200 half-ulps on each side, relative to results above 0.1.
    assert got == pytest.approx(
        {"auc": auc, "logloss": loss, "ne": loss / entropy, "rate": rate}, rel=200 * 10 * 2.0**-52
    )


def test_predicting_the_base_rate_has_entropy_one_and_auc_half():
    labels = [1.0] * 10 + [0.0] * 30
    got = evaluate([math.log(0.25 / 0.75)] * 40, labels)
    assert got["rate"] == 0.25
    assert got["auc"] == 0.5
    assert got["ne"] == pytest.approx(1.0, rel=60 * 2.0**-52)  # 40 terms summed, and their logs


def test_batches_add_up_to_one_pass():
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(90, generator=generator), torch.randint(0, 2, (90,), generator=generator)
    one, many = ClickMetrics(), ClickMetrics()
    one.update(logits, labels)
    for at in range(0, 90, 20):
        many.update(logits[at : at + 20], labels[at : at + 20])
    assert one.compute() == many.compute()


def test_what_was_measured_does_not_change_afterwards():
    metrics = ClickMetrics()
    logits, labels = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    metrics.update(logits, labels)
    before = metrics.compute()
    logits.neg_()
    assert metrics.compute() == before


def test_extreme_logits_neither_overflow_nor_vanish():
    got = evaluate([1000.0, -1000.0], [0, 1])
    assert got["logloss"] == 1000.0
    assert evaluate([50.0, -50.0], [1, 0])["logloss"] == pytest.approx(
        math.exp(-50), rel=1e-12
    )  # fp64 log1p and exp: ulps


def test_low_precision_logits_with_gradients_are_taken():
    metrics = ClickMetrics()
    metrics.update(torch.tensor([1.0, -1.0], dtype=torch.bfloat16, requires_grad=True), torch.tensor([True, False]))
    assert metrics.compute()["auc"] == 1.0


def test_empty_and_one_class_passes_are_errors():
    with pytest.raises(ValueError, match="given 0 samples with 0 clicks"):
        ClickMetrics().compute()
    with pytest.raises(ValueError, match="given 2 samples with 2 clicks"):
        evaluate([0.0, 1.0], [1, 1])
    with pytest.raises(ValueError, match="given 2 samples with 0 clicks"):
        evaluate([0.0, 1.0], [0, 0])


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ([0.0, float("nan")], [0, 1], "logits: expected finite .* given nan at position 1"),
        ([float("inf"), 0.0], [0, 1], "given inf at position 0"),
        ([0.0, 0.0], [0, 2], "labels: expected 0 or 1; given 2.0 at position 1"),
        ([0.0, 0.0], [0, float("nan")], "labels: expected 0 or 1; given nan"),
        ([0.0, 0.0], [0], "one shape"),
    ],
)
def test_bad_input_is_named(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        evaluate(logits, labels)
