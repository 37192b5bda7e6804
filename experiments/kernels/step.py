"""One training step of an embedding table: lookup, backward + update, and both, by backend, against eager torch.

Paper figure: none; the speed of the kernels is the project's own claim.
Command: python -m experiments run kernels/step --laptop. Minutes: about one on two cores; the grid about ten.
Expected shape: the lookup of `cpu` takes as long as torch's embedding_bag (both wait for memory), its fused backward +
update a fraction of eager torch's, which passes over [ids, dim] intermediates several times.

Arms: each backend of `kernels` that can run on the device (the slow `torch` not in the laptop form); `eager`:
F.embedding_bag, then the sparse gradient of autograd, for row-wise Adagrad coalesced and the rule in eager torch, for
SGD torch.optim.SGD; `eager_sorted` (row-wise Adagrad): the same rule on a gradient summed by sorting the ids and
pooling bags of equal ids, the fastest way found with torch's index ops. All arms work on the same batch and table;
before a clock starts, each one's results are held to the truth within a derived bound.

Metrics: `ms` median; `ratio` eager's time over this arm's, round by round, with the ends of its 90 % interval;
`gbytes_per_s` of the contract's bytes; `of_copy` that over a large copy's; `of_random_rows` that over the
rate at which rows at random places can be read here by a plain loop, measured in the same rounds (above 1 where popular
rows come from the cache).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from experiments.config import Measurement, grid
from experiments.data.zipf import zipf_ids
from experiments.timing import Samples, copy_bandwidth, interleaved, interleaved_parts, touch_rows
from kernels.pooled_lookup.cases import cost as lookup_cost
from kernels.segment_grads._torch import segment_grads as true_grads
from kernels.sparse_update.cases import cost as update_cost
from kernels.unique_ids.cases import cost as unique_cost


@dataclass(frozen=True)
class Config:
    """One table, one batch: `alpha` is the Zipf exponent of the ids (0: uniform), `pairs` the rounds that count."""

    rows: int = 2_000_000
    dim: int = 128
    batch: int = 8192
    hotness: int = 20
    alpha: float = 0.0
    optimizer: str = "rowwise_adagrad"
    lr: float = 0.01
    pairs: int = 15
    warmup: int = 1
    seed: int = 0
    truth: bool = True
    """Also time backend `torch`, which is written to be read: it takes longer than all others together."""


GRID = grid(Config, optimizer=("rowwise_adagrad", "sgd"), dim=(32, 128), alpha=(0.0, 1.05), pairs=(31,))
LAPTOP = grid(Config, alpha=(0.0, 1.05), truth=(False,))
TINY = grid(
    Config, rows=(500,), dim=(16,), batch=(64,), alpha=(1.05,), optimizer=("rowwise_adagrad", "sgd"), pairs=(5,)
)
BUDGET_S = 90.0
GPU = grid(Config, rows=(8_000_000,), batch=(65_536,), dim=(128, 64, 256), hotness=(20, 1, 100), alpha=(0.0, 1.05))
"""What `make gpu` times, the most telling first: tables of 2 to 8 GB."""

EPS = 1e-8
STATE = 1.0
"""Where the accumulators start: at 0 the first step divides noise by its own size, and no bound would hold."""
BASE = "eager"
PROBE = "rows"
PHASES = ("lookup", "update", "step")


@dataclass(frozen=True)
class Batch:
    """Table [rows, dim], accumulators [rows] or none, a batch of ids [N] and the gradient of its bags [batch, dim]."""

    table: Tensor
    states: tuple[Tensor, ...]
    ids: Tensor
    offsets: Tensor
    grad_out: Tensor
    optimizer: str
    lr: float


@dataclass(frozen=True)
class Arm:
    """Two calls on the same batch; `update` changes table and state in place and may use what `lookup` left."""

    lookup: Callable[[], Tensor]
    update: Callable[[], None]


def measure(config: Config) -> Iterator[Measurement]:
    """Time every arm on one batch: one measurement per arm and phase.

    Raises:
        RuntimeError: an arm's result is further from the truth than rounding explains.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = make(config, device)
    arms = arms_of(batch)
    if not config.truth:
        del arms["torch"]
    rows = kernels.unique_ids(batch.ids, backend="torch").rows
    for name, arm in arms.items():
        check(name, arm, batch, rows)
    spread = zipf_ids(config.rows, 0.0, len(batch.ids), config.seed + 1).to(device)
    probe = {PROBE: {"update": lambda: touch_rows(batch.table, spread)}}
    copied = copy_bandwidth(device)
    times = {
        "lookup": interleaved(
            {PROBE: probe[PROBE]["update"]} | {n: a.lookup for n, a in arms.items()},
            config.pairs,
            config.warmup,
            device,
        )
    }
    parts = {name: {"lookup": arm.lookup, "update": arm.update} for name, arm in arms.items()}
    steps = interleaved_parts(probe | parts, config.pairs, config.warmup, device)
    times["update"] = {name: samples["update"] for name, samples in steps.items()}
    times["step"] = {name: samples["lookup"] + samples["update"] for name, samples in steps.items() if name in arms}
    times["step"][PROBE] = steps[PROBE]["update"]
    moved = bytes_of(batch, rows)
    probed = len(spread) * batch.table.shape[1] * batch.table.itemsize
    for phase in PHASES:
        for name in arms:
            yield measurement(phase, name, times[phase], moved[phase], probed, copied, device)


def make(config: Config, device: str) -> Batch:
    """Draw the table and the batch from the seed."""
    random = torch.Generator().manual_seed(config.seed)
    table = torch.empty(config.rows, config.dim).uniform_(-0.1, 0.1, generator=random).to(device)
    grad_out = torch.empty(config.batch, config.dim).normal_(0, 1e-3, generator=random)
    ids = zipf_ids(config.rows, config.alpha, config.batch * config.hotness, config.seed)
    return Batch(
        table,
        tuple(state + STATE for state in kernels.state_like(table, kernels.Optimizer(config.optimizer))),
        ids.to(device),
        torch.arange(config.batch + 1, device=device) * config.hotness,
        grad_out.to(device),
        config.optimizer,
        config.lr,
    )


def arms_of(batch: Batch) -> dict[str, Arm]:
    """The arms that run on the batch's device, the base first."""
    backends = ("triton", "numba", "torch") if batch.table.device.type == "cuda" else ("cpu", "torch")
    ours = {backend: backend_arm(batch, backend) for backend in backends}
    if batch.optimizer == "sgd":
        return {BASE: sgd_arm(batch)} | ours
    return {BASE: sparse_grad_arm(batch), "eager_sorted": sorting_arm(batch)} | ours


def backend_arm(batch: Batch, backend: str) -> Arm:
    """The ops of `kernels` with one backend."""

    def update() -> None:
        unique = kernels.unique_ids(batch.ids, backend=backend)
        kernels.sparse_update(
            batch.table,
            batch.states,
            unique.rows,
            batch.grad_out,
            batch.offsets,
            None,
            "sum",
            unique.order,
            unique.starts,
            kernels.Optimizer(batch.optimizer, eps=EPS),
            batch.lr,
            backend=backend,
        )

    return Arm(lambda: kernels.pooled_lookup(batch.table, batch.ids, batch.offsets, backend=backend), update)


def sorting_arm(batch: Batch) -> Arm:
    """Row-wise Adagrad with torch's index ops: sort the ids, pool the gradients of equal ids, apply the rule."""
    bags = torch.repeat_interleave(batch.offsets.diff())

    def update() -> None:
        order = torch.argsort(batch.ids, stable=True)
        rows, counts = torch.unique_consecutive(batch.ids[order], return_counts=True)
        grads = F.embedding_bag(bags[order], batch.grad_out, counts.cumsum(0) - counts, mode="sum")
        apply_rowwise_adagrad(batch, rows, grads)

    return Arm(lambda: F.embedding_bag(batch.ids, batch.table, batch.offsets[:-1], mode="sum"), update)


def sparse_grad_arm(batch: Batch) -> Arm:
    """Row-wise Adagrad on the coalesced sparse gradient of autograd."""
    weight, out = batch.table.detach().requires_grad_(), []

    def lookup() -> Tensor:
        out[:] = [F.embedding_bag(batch.ids, weight, batch.offsets[:-1], mode="sum", sparse=True)]
        return out[0].detach()

    def update() -> None:
        (grad,) = torch.autograd.grad(out.pop(), weight, batch.grad_out)
        grad = grad.coalesce()
        apply_rowwise_adagrad(batch, grad.indices()[0], grad.values())

    return Arm(lookup, update)


def apply_rowwise_adagrad(batch: Batch, rows: Tensor, grads: Tensor) -> None:
    """The rule in eager torch, in place where it can be: overwrites `grads`."""
    (states,) = batch.states
    state = states[rows] + grads.square().mean(1)
    states[rows] = state
    batch.table.index_add_(0, rows, grads.mul_((-batch.lr / (state.sqrt() + EPS))[:, None]))


def sgd_arm(batch: Batch) -> Arm:
    """torch.optim.SGD on the sparse gradient of autograd."""
    weight, out = batch.table.detach().requires_grad_(), []
    optimizer = torch.optim.SGD([weight], lr=batch.lr)

    def lookup() -> Tensor:
        out[:] = [F.embedding_bag(batch.ids, weight, batch.offsets[:-1], mode="sum", sparse=True)]
        return out[0].detach()

    def update() -> None:
        optimizer.zero_grad()
        out.pop().backward(batch.grad_out)
        optimizer.step()

    return Arm(lookup, update)


def check(name: str, arm: Arm, batch: Batch, rows: Tensor) -> None:
    """Hold one step of an arm to the truth, then undo it. `rows` [U] are the distinct ids, ascending.

    With u = 2^-24, a sum of n terms in any order is off by n u sum|terms| at the most. An update subtracts c g: g is
    such a sum; c = lr / (sqrt(s) + eps) inherits half the relative error of s, to which it adds the mean of dim squares
    of g, (dim + 2 n + 2) u; with the roundings of c, the product and the subtraction (2 n + dim / 2 + 8) u c sum|terms|
    + u |w| in all. SGD may subtract its n terms one by one: n u |w| then. Twice that for the truth's own error.
    """
    u = 2.0**-24
    gathered = batch.table[batch.ids]
    bags = torch.repeat_interleave(batch.offsets.diff())
    magnitude = torch.zeros_like(batch.grad_out).index_add_(0, bags, gathered.abs_())
    lengths = batch.offsets.diff()[:, None]
    truth = kernels.pooled_lookup(batch.table, batch.ids, batch.offsets, backend="torch")
    hold(f"{name} lookup", arm.lookup(), truth, 2 * lengths * u * magnitude)

    before = batch.table[rows]
    state = batch.states[0][rows] if batch.states else None
    index = kernels.unique_ids(batch.ids, backend="torch")
    grads = true_grads(batch.grad_out, batch.offsets, None, "sum", index.order, index.starts)
    sizes = true_grads(batch.grad_out.abs(), batch.offsets, None, "sum", index.order, index.starts)
    rate = batch.lr if state is None else batch.lr / ((state + grads.square().mean(1)).sqrt() + EPS)[:, None]
    terms = index.starts.diff()[:, None]
    subtractions = terms if state is None else 1
    bound = (2 * terms + batch.table.shape[1] / 2 + 8) * rate * sizes + subtractions * before.abs()
    arm.update()
    hold(f"{name} update", batch.table[rows], before - rate * grads, 2 * u * bound)
    batch.table[rows] = before
    if state is not None:
        batch.states[0][rows] = state


def hold(what: str, given: Tensor, truth: Tensor, bound: Tensor) -> None:
    """Raise RuntimeError unless `given` is within `bound` of `truth` everywhere; a NaN is not."""
    wrong = ~((given - truth).abs() <= bound)
    if bool(wrong.any()):
        at = tuple(torch.nonzero(wrong)[0].tolist())
        raise RuntimeError(
            f"{what}: expected {float(truth[at])} within {float(bound[at])} at {at}, given {float(given[at])} "
            f"({int(wrong.sum())} such numbers): wrong results are not timed"
        )


def bytes_of(batch: Batch, rows: Tensor) -> dict[str, float]:
    """Bytes by phase, as the contracts of the ops count them; the same for every arm."""
    index = kernels.unique_ids(batch.ids, backend="torch")
    lookup = {"table": batch.table, "ids": batch.ids, "offsets": batch.offsets, "weights": None, "pooling": "sum"}
    update = {
        "table": batch.table,
        "states": batch.states,
        "rows": rows,
        "grad_out": batch.grad_out,
        "offsets": batch.offsets,
        "weights": None,
        "pooling": "sum",
        "order": index.order,
        "starts": index.starts,
    }
    read = lookup_cost(lookup).bytes["memory"]
    changed = update_cost(update).bytes["memory"] + unique_cost({"ids": batch.ids}).bytes["memory"]
    return {"lookup": read, "update": changed, "step": read + changed}


def measurement(
    phase: str, name: str, times: dict[str, Samples], moved: float, probed: int, copied: float, device: str
) -> Measurement:
    """What the rounds say about an arm in a phase: it moved `moved` bytes, the probe of the same rounds `probed`."""
    ratio = times[BASE].over(times[name])
    return Measurement(
        point={"phase": phase, "backend": name, "device": device},
        metrics={
            "ms": times[name].median * 1e3,
            "ratio": ratio.median,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "gbytes_per_s": moved / times[name].median / 1e9,
            "of_copy": moved / times[name].median / copied,
            "of_random_rows": times[PROBE].over(times[name]).median * moved / probed,
        },
        unit={
            "ms": "ms",
            "ratio": "eager / this",
            "ratio_low": "eager / this",
            "ratio_high": "eager / this",
            "gbytes_per_s": "GB/s",
            "of_copy": "fraction",
            "of_random_rows": "fraction",
        },
        samples=len(times[name].seconds),
        env={} if name not in kernels.BACKENDS else {"backend": name},
    )
