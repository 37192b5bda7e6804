"""The learning rate as a function of the step: one object for the sparse optimizer and the dense one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupDecay:
    """Linear warm-up to `base`, then constant, then polynomial decay to `floor * base`; steps count from 0.

    Step s < `warmup_steps` has base * (s + 1) / warmup_steps (never 0, and the last warm-up step has all of base).
    From `decay_start` on, over `decay_steps`: base * max(floor, left ** power) with left the share of the decay that is
    to come, (decay_start + decay_steps - s) / decay_steps; after that base * floor. `decay_steps` 0 means no decay. The
    policy of DLRM's published code and of MLPerf, where power is 2.

    Sparse: `lr(step)` each step. Dense: an optimizer built with `lr=base` and
    `torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)`: the same numbers.
    """

    base: float
    warmup_steps: int = 0
    decay_start: int = 0
    decay_steps: int = 0
    power: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.base < float("inf"):
            raise ValueError(f"base: expected a finite positive learning rate, given {self.base}")
        if min(self.warmup_steps, self.decay_start, self.decay_steps) < 0:
            raise ValueError(
                f"expected step counts >= 0, given warmup_steps={self.warmup_steps}, decay_start={self.decay_start}, "
                f"decay_steps={self.decay_steps}"
            )
        if self.decay_steps and self.decay_start < self.warmup_steps:
            raise ValueError(
                f"decay_start: expected at least warmup_steps = {self.warmup_steps}, given {self.decay_start}; "
                "let the decay start when the warm-up ends, or later"
            )
        if self.power <= 0 or not 0 <= self.floor <= 1:
            raise ValueError(f"expected power > 0 and 0 <= floor <= 1, given power={self.power}, floor={self.floor}")

    def factor(self, step: int) -> float:
        """Share of `base` at `step`, in [0, 1]."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if not self.decay_steps or step < self.decay_start:
            return 1.0
        left = max(0, self.decay_start + self.decay_steps - step) / self.decay_steps
        return max(self.floor, left**self.power)

    def lr(self, step: int) -> float:
        """Learning rate at `step`."""
        return self.base * self.factor(step)
