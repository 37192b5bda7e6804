"""The cost model of a step behind a link, in closed form.

    P = bytes in and out over the link, one after another, or with both directions at once the larger of the two
    no prefetch    forward + dense + backward + P
    strict         max(forward + dense, P) + backward        prefetch and sparse backward exclude each other
    relaxed        max(forward + dense + backward, P)        arm (a)

Bytes follow from the miss curve: once warm a row leaves for each that comes. What is left out: conflict misses, the
work of the prefetch itself (probe, copy), and cores that streams share.
"""

from dataclasses import dataclass

from experiments.offload._arms import Arm


@dataclass(frozen=True)
class Parts:
    """Seconds of a step on the device without a dense part: `forward` and `backward` of the embedding."""

    forward: float
    backward: float

    @property
    def embedding(self) -> float:
        """Both."""
        return self.forward + self.backward


def link_seconds(arm: Arm, bytes_in: float, bytes_out: float, rate: float) -> float:
    """Seconds of the link for a step's rows; `rate` bytes/s each way."""
    return (max(bytes_in, bytes_out) if arm.duplex else bytes_in + bytes_out) / rate


def step_seconds(arm: Arm, parts: Parts, dense: float, link: float) -> float:
    """Seconds of a step with `dense` seconds of a dense part and `link` of the link."""
    if arm.store == "device":
        return parts.embedding + dense
    if not arm.prefetch:
        return parts.embedding + dense + link
    if arm.relaxed:
        return max(parts.embedding + dense, link)
    return max(parts.forward + dense, link) + parts.backward


def dense_for(arm: Arm, parts: Parts, link: float, slow_down: float) -> float:
    """The least dense seconds with which `arm` is at most `slow_down` (0.15: 15 %) slower than all on the device.

    0 if it is without any. By the formulas above, solved for the dense part.
    """
    s, e = slow_down, parts.embedding
    if not arm.prefetch:
        return max(0.0, link / s - e)
    if arm.relaxed:
        return max(0.0, link / (1 + s) - e)
    return max(0.0, (link + parts.backward) / (1 + s) - e)
