"""A random local search in one dimension, clamped: how the published planner looks for the best budget.

R. Luus, T. Jaakola, "Optimization by direct search and systematic reduction of the size of search region", AIChE
Journal 1973; the clamping, the draws and their seed as in TorchRec's `LuusJaakolaSearch`, whose minima are the tests.
"""

import torch

SHRINK = 0.95


class LuusJaakola:
    """Looks for the x in [left, right] of the least cost, `iterations` times: `next` takes the cost of the x before.

    `left_cost`: the cost at `left`, where it is known.
    """

    def __init__(
        self, left: float, right: float, iterations: int = 16, seed: int = 42, left_cost: float | None = None
    ) -> None:
        if right < left:
            raise ValueError(f"expected left <= right, given {left} and {right}")
        self.left, self.right, self.iterations = left, right, iterations
        self.known = {} if left_cost is None else {left: left_cost}
        self._generator = torch.Generator().manual_seed(seed)
        self._step = right - left
        self._calls = 0
        self._x = self._uniform(left, right)
        self._tried = self._x
        self._cost = float("inf")
        self._best: tuple[float, float] | None = None if left_cost is None else (left, left_cost)

    def next(self, cost: float) -> float | None:
        """The x to try, given the `cost` of the last one (anything, at the first call); None when all is tried."""
        if self._calls:
            self.known[self._tried] = cost
            if self._best is None or cost < self._best[1]:
                self._best = self._tried, cost
            if self._calls == 1:
                self._cost = cost
            elif cost <= self._cost:
                self._x, self._cost = self._tried, cost
                self._step *= SHRINK
        if self._calls == self.iterations:
            return None
        if self._calls:
            self._tried = self._propose()
        self._calls += 1
        return self._tried

    def shrink_right(self, bound: float) -> None:
        """Nothing at or above `bound` is feasible."""
        self.right = bound
        self.known[bound] = float("inf")
        self._step = self.right - self.left
        self._x = self._clamp(self._x)

    def best(self) -> tuple[float, float]:
        """(x, cost) of the least cost seen; RuntimeError before the first one."""
        if self._best is None:
            raise RuntimeError("expected a cost to be known, given none yet: call `next` twice first")
        return self._best

    def _propose(self) -> float:
        while True:
            x = self._clamp(self._x + self._uniform(-self._step, self._step))
            # two known ends that touch leave nothing to resample
            if x not in (self.left, self.right) or x not in self.known or self.left >= self.right:
                return x

    def _clamp(self, x: float) -> float:
        return min(max(x, self.left), self.right)

    def _uniform(self, low: float, high: float) -> float:
        return low + (high - low) * torch.rand(1, generator=self._generator).item()
