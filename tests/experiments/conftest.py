import sys

import pytest

import experiments

TOY = '''"""A toy.

Longer words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.config import Measurement, grid


@dataclass(frozen=True)
class Model:
    dim: int = 4


@dataclass(frozen=True)
class Config:
    zipf: float = 1.0
    data: str = ""
    model: Model = Model()


GRID = grid(Config, zipf=[0.0, 1.0, 2.0])
LAPTOP = GRID[:2]
TINY = GRID[:1]
BUDGET_S = 2.0


def measure(config: Config) -> Iterator[Measurement]:
    for step in range(3):
        yield Measurement({"step": step}, {"ms": config.zipf * step}, {"ms": "ms"}, samples=1)
'''


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Stands for experiments/: toy/one works; toy/broken fails, toy/stopped is interrupted after the first record."""
    folder = tmp_path / "package"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "__init__.py").touch()
    (folder / "toy" / "one.py").write_text(TOY)
    for name, error in (("broken", 'RuntimeError("broke")'), ("stopped", "KeyboardInterrupt")):
        (folder / "toy" / f"{name}.py").write_text(f"{TOY}        raise {error}\n")
    (folder / "toy" / "helper.py").write_text("def other() -> None: ...\n")
    monkeypatch.setattr(experiments, "__path__", [str(folder)])
    yield folder
    for module in [name for name in sys.modules if name.startswith("experiments.toy")]:
        del sys.modules[module]
    vars(experiments).pop("toy", None)
