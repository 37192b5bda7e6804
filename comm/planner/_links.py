"""Prices of bytes: links and ops as `comm.topology.Link` and `comm.cost` price them, in compiled code."""

from numba import njit

from ._arrays import INTRA, NIC, Fixed, Floats


@njit(cache=True)
def seconds(f: Fixed, i: int, amount: float, messages: float) -> float:
    """`Link.seconds` of line i of `rate`."""
    points = int(f.rate[i, 2])
    if points == 0:
        return messages * f.rate[i, 0] + amount / f.rate[i, 1]
    xs, ys = f.xs[i], f.ys[i]
    last = points - 1
    beyond = max(amount - xs[last], 0.0) / f.rate[i, 1]
    found = ys[last]
    if amount <= xs[0]:
        found = ys[0]
    elif amount < xs[last]:
        j = 1
        while xs[j] < amount:
            j += 1
        found = ys[j - 1] + (ys[j] - ys[j - 1]) * (amount - xs[j - 1]) / (xs[j] - xs[j - 1])
    return (messages - 1) * f.rate[i, 0] + found + beyond


@njit(cache=True)
def charge(f: Fixed, i: int, amount: Floats, out: Floats) -> None:
    """Add the seconds of `amount` [world] bytes by line i of `rate` to `out` [world]."""
    if f.rate[i, 2] == 0:
        alpha, each = f.rate[i, 0], 1.0 / f.rate[i, 1]
        for r in range(len(out)):
            out[r] += alpha + amount[r] * each
    else:
        for r in range(len(out)):
            out[r] += seconds(f, i, amount[r], 1)


@njit(cache=True)
def collective(f: Fixed, intra: float, nic: float, calls: float, used: Floats) -> None:
    """Add one collective to its slowest link in `used` [2, 2] (bytes, calls), as `Collective.slowest` chooses it."""
    link = NIC if f.world > f.local else INTRA
    if intra > 0 and nic > 0:
        link = INTRA if seconds(f, INTRA, intra, calls) >= seconds(f, NIC, nic, calls) else NIC
    elif intra > 0:
        link = INTRA
    elif nic > 0:
        link = NIC
    used[link, 0] += nic if link == NIC else intra
    used[link, 1] += calls


@njit(cache=True)
def closed(f: Fixed, used: Floats) -> float:
    """Seconds of what `used` holds; empties it."""
    total = 0.0
    for link in range(2):
        if used[link, 1] > 0 and f.world > 1:
            total += seconds(f, link, used[link, 0], used[link, 1])
        used[link, 0] = used[link, 1] = 0.0
    return total


@njit(cache=True)
def busiest(f: Fixed, x: Floats, into: Floats) -> None:
    """Loads of an all-to-all in which every source sends x[r] to owner r: into = [intra, nic, mean square of nic]."""
    everything = x.sum()
    intra = nic = square = 0.0
    for node in range(f.world // f.local):
        first = node * f.local
        here = 0.0
        for r in range(first, first + f.local):
            here += x[r]
        for r in range(first, first + f.local):
            intra = max(intra, (f.local - 1) * x[r], here - x[r])
        coming = f.per_nic * (everything - here)
        for start in range(first, first + f.local, f.per_nic):
            going = 0.0
            for r in range(start, start + f.per_nic):
                going += x[r]
            going *= f.world - f.local
            nic = max(nic, going, coming)
            square += going * going
    into[0], into[1] = intra, nic
    into[2] = (square * f.per_nic / f.world) ** 0.5
