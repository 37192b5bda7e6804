"""`python -m experiments`: list, run, reproduce, record, calibrate, and the commands of experiments/commands."""

import dataclasses
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from experiments import commands
from experiments.config import Experiment, load, names
from experiments.run import Interrupted, Job, report, run

RUNS = Path("runs")
RESULTS = Path("experiments/results")


def show_list() -> None:
    """Name every experiment, with what it shows and its budget."""
    for experiment in map(load, names()):
        sizes = ", ".join(f"{len(configs)} {which}" for which, configs in experiment.sets.items())
        print(f"{experiment.name}\n    {experiment.doc.splitlines()[0]}")
        print(f"    configurations: {sizes}; laptop budget {experiment.budget_s:.0f} s")


def reproduce(data: Path | None = None, out: Path = RUNS) -> None:
    """Run the laptop form of every experiment, draw every figure from its records, print the claim table.

    Args:
        data: a Criteo-format click log (.tsv, .tsv.gz, .parquet) to train on; the calibrated generator otherwise.
        out: where records and figures go.
    """
    jobs = [Job(e, e.sets["laptop"], e.budget_s) for e in map(load, names())]
    if data is not None:
        jobs = with_data(jobs, data)
    execute(jobs, out, figures=True)


def record(name: tyro.conf.Positional[tuple[str, ...]] = (), out: Path = RESULTS) -> None:
    """Run the full grid of the named experiments, or of all, into the committed results.

    Args:
        name: experiments; all when none is given.
        out: where records go.
    """
    execute([Job(e, e.sets["grid"]) for e in map(load, name or names())], out)


def calibrate(
    nodes: int = 1,
    ranks_per_node: int = 2,
    rate: str = "200mbit",
    shaping: bool = True,
    largest: int = 1 << 22,
    out: Path = RUNS / "topology.json",
) -> None:
    """Measure collectives on every link, kernels and dense layers of this machine, or of a cluster emulated on it.

    Args:
        nodes: nodes of the emulated cluster; one needs neither root nor iproute2.
        ranks_per_node: processes on each.
        rate: of the link between nodes, with its unit, such as 200mbit.
        shaping: give the link between nodes that rate; without, all is loopback.
        largest: bytes a rank sends in the largest of the 20 sizes.
        out: where the topology goes.
    """
    from experiments.calibrate import main as measure_machine

    measure_machine(nodes, ranks_per_node, rate, shaping, largest, out)


def usage() -> None:
    """Run one experiment: run NAME [--tiny | --laptop] [--out DIR] [--any.config value]; the full grid by default.

    `run NAME --help` lists the configuration's flags.
    """
    raise ValueError(f"run needs an experiment's name before its flags: choose one of {', '.join(names())}")


def run_one(experiment: Experiment, arguments: list[str]) -> None:
    """Run one set of an experiment; overrides apply to each configuration, and what they make equal runs once."""
    given = parse(experiment, experiment.sets["grid"][0], arguments)
    if given.tiny and given.laptop:
        raise ValueError("run: give --tiny or --laptop, not both")
    which = "tiny" if given.tiny else "laptop" if given.laptop else "grid"
    configs = []
    for default in experiment.sets[which]:
        config = parse(experiment, default, arguments).config
        if config not in configs:
            configs.append(config)
    as_declared = which == "laptop" and tuple(configs) == experiment.sets["laptop"]
    execute([Job(experiment, tuple(configs), experiment.budget_s if as_declared else None)], given.out)


def parse(experiment: Experiment, default: Any, arguments: list[str]) -> Any:
    """Parse the flags of `run NAME`; returns .config (`default` with its overrides), .tiny, .laptop and .out."""
    options = [
        ("config", Annotated[experiment.config, tyro.conf.arg(name="")], dataclasses.field(default=default)),
        ("tiny", Annotated[bool, tyro.conf.arg(help="the set of seconds")], dataclasses.field(default=False)),
        ("laptop", Annotated[bool, tyro.conf.arg(help="what `reproduce` runs")], dataclasses.field(default=False)),
        ("out", Annotated[Path, tyro.conf.arg(help="where the records go")], dataclasses.field(default=RUNS)),
    ]
    return tyro.cli(
        dataclasses.make_dataclass("Run", options, frozen=True),
        prog=f"python -m experiments run {experiment.name}",
        description=experiment.doc,
        args=[
            a.replace("--config.", "--", 1) if a.startswith("--config.") else a for a in arguments
        ],  # both are accepted
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def with_data(jobs: list[Job], data: Path) -> list[Job]:
    """The jobs with `data` in every configuration that has a field of that name."""
    if not data.exists():
        raise ValueError(f"no such click log: {data}")
    changed = []
    for job in jobs:
        if any(field.name == "data" for field in dataclasses.fields(job.experiment.config)):
            configs = tuple(dataclasses.replace(config, data=str(data)) for config in job.configs)
            job = dataclasses.replace(job, configs=configs)
        changed.append(job)
    return changed


def execute(jobs: list[Job], out: Path, figures: bool = False) -> None:
    """Run the jobs, then the figures if asked, report, and exit with 1 if anything failed, 130 on Ctrl-C."""
    console = Console()
    try:
        outcomes = run(jobs, out, console)
    except Interrupted as interrupted:
        report(interrupted.outcomes, console)
        print("interrupted: every record written so far is readable")
        raise SystemExit(130) from None
    drawn = not figures or draw_figures(out)
    if not (report(outcomes, console) and drawn):
        raise SystemExit(1)


def draw_figures(records: Path) -> bool:
    """Draw every figure and the page `report.html` from `records`, in a process of its own like any reader of records;
    True if all went well.
    """
    command = [sys.executable, "-m", "paper_figs", "--records", str(records), "--out", str(records / "figures")]
    command += ["--page", str(records / "report.html")]
    return subprocess.run(command, check=False).returncode == 0


def other_commands(wanted: str = "") -> dict[str, Any]:
    """`main` of the file `experiments/commands/<name>.py` by name: the one that is `wanted`, or all."""
    found = [path.stem for path in sorted(Path(commands.__path__[0]).glob("[a-z]*.py"))]
    chosen = [wanted] if wanted in found else found
    return {name: import_module(f"{commands.__name__}.{name}").main for name in chosen}


def main(arguments: list[str]) -> None:
    """Parse and run one command line."""
    try:
        if arguments[:1] == ["run"] and len(arguments) > 1 and not arguments[1].startswith("-"):
            run_one(load(arguments[1]), arguments[2:])
            return
        known = {"list": show_list, "run": usage, "reproduce": reproduce, "record": record, "calibrate": calibrate}
        if not arguments or arguments[0] not in known:  # these import much: only when asked for, or to be listed
            known |= other_commands(*arguments[:1])
        tyro.extras.subcommand_cli_from_dict(known, prog="python -m experiments", args=arguments)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
