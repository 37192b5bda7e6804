"""The name is the path: experiment `train/strategies` is `experiments/train/strategies.py`; so with figures."""

import ast
import difflib
from pathlib import Path
from types import ModuleType


def find(package: ModuleType, function: str) -> list[str]:
    """Sorted names (`group/name`) of modules below `package` with a top-level `function`; imports none of them."""
    found = set()
    for root in map(Path, package.__path__):
        for path in root.glob("*/**/*.py"):
            body = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
            if any(isinstance(node, ast.FunctionDef) and node.name == function for node in body):
                found.add(path.relative_to(root).with_suffix("").as_posix())
    return sorted(found)


def require(name: str, known: list[str], noun: str) -> str:
    """Return `name` if it is among `known`, else raise ValueError that names the choices and the closest of them."""
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        choices = f"choose one of {', '.join(known)}" if known else "there are none yet"
        raise ValueError(f"unknown {noun} {name!r}{hint}: {choices}")
    return name
