"""Under which optimizers rows may travel before their step, and gradients after it: those that change rows of the batch
alone.
"""

import torch

from kernels import Optimizer


def refuse_inexact(rule: object, deferral: bool, clip_global_norm: float | None = None) -> None:
    """Raise ValueError, with the reason, if training tables by `rule` with early rows or late gradients would not give
    the weights of plain training.

    Exact are rules by which a step changes the rows of its batch alone, each from its own gradient: all of
    `kernels.Optimizer` (momentum, decay and Adam's moments of a row wait until the row is touched). A torch.optim
    optimizer over whole tables is checked for what it does to the others.
    """
    moves_all = None
    if isinstance(rule, torch.optim.SparseAdam):
        pass
    elif isinstance(rule, torch.optim.Optimizer):
        for group in rule.param_groups:
            if group.get("momentum"):
                moves_all = f"momentum={group['momentum']} moves every row at every step"
            elif group.get("weight_decay"):
                moves_all = f"weight_decay={group['weight_decay']} shrinks every row at every step"
            elif "betas" in group:
                moves_all = f"{type(rule).__name__} moves every row that has a moment at every step"
    elif not isinstance(rule, Optimizer):
        raise ValueError(f"optimizer: expected a kernels.Optimizer or one of torch.optim, given {type(rule).__name__}")
    if moves_all:
        raise ValueError(
            f"optimizer: {moves_all}, asked for or not, so that no row is safe to send before its step: expected "
            "a rule that changes only the rows of the batch, such as those of kernels.Optimizer"
        )
    if clip_global_norm is not None and deferral:
        raise ValueError(
            f"deferral: clip_global_norm={clip_global_norm} scales every gradient of a step by the norm of all of "
            "them, which is not known before the late ones have come: expected deferral off, or clip_row_norm"
        )
