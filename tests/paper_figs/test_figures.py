import subprocess
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console

import paper_figs
from experiments.record import KINDS, Measurement, Writer
from paper_figs import style
from paper_figs.__main__ import draw, draw_all, figures, problems_of
from paper_figs.readme import BEGIN, END, problem, updated
from paper_figs.table import Claim, show

FIGURE = """from paper_figs import style
from paper_figs.table import Claim

SOURCE = "toy/one"


def draw(df):
    fig, (left, right) = style.figure(1, 2)
    for index, (kind, part) in enumerate(df.groupby("kind", sort=False)):
        style.line(left, part["point.step"], part["metrics.ms"], kind, index, label=kind)
        style.bars(right, [index], part["metrics.ms"].max(), kind, index)
    style.kind_legend(fig, df["kind"])
    return fig


def claims(df):
    return [Claim("it grows", "Fig. 3", f"{df['metrics.ms'].max():.1f} ms", "measured vs paper")]
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    folder = tmp_path / "package"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "one.py").write_text(FIGURE)
    monkeypatch.setattr(paper_figs, "__path__", [*paper_figs.__path__, str(folder)])
    yield tmp_path / "records"
    for module in [name for name in sys.modules if name.startswith("paper_figs.toy")]:
        del sys.modules[module]


def measure(records, slope=1.0):
    from dataclasses import make_dataclass

    env = {"gpu": "none", "cpu": "x", "cores": 2}
    with Writer(records, "toy/one", env) as writer:
        for kind in KINDS:
            for step in range(3):
                point = Measurement({"step": step}, {"ms": slope * step}, {"ms": "ms"}, samples=1, kind=kind)
                writer.write(make_dataclass("Config", [])(), point)


def test_a_figure_is_byte_for_byte_a_function_of_its_records(toy, tmp_path):
    measure(toy)
    (claim,), path, _ = draw("toy/one", toy, tmp_path / "a")
    assert path == tmp_path / "a" / "toy" / "one.svg"
    assert claim.got == "2.0 ms"
    assert draw("toy/one", toy, tmp_path / "b")[1].read_bytes() == path.read_bytes()


def test_check_finds_what_was_not_drawn_from_the_records(toy, tmp_path):
    out = tmp_path / "out"
    assert problems_of(["toy/one"], toy, out) == []
    measure(toy)
    (problem,) = problems_of(["toy/one"], toy, out)
    assert "exists" in problem
    draw("toy/one", toy, out)
    assert problems_of(["toy/one"], toy, out) == []
    measure(toy, slope=2.0)
    (problem,) = problems_of(["toy/one"], toy, out)
    assert "is not what" in problem
    draw("toy/one", toy, out)
    (out / "toy" / "old.svg").touch()
    (problem,) = problems_of(["toy/one"], toy, out)
    assert "no module draws" in problem


def test_check_finds_records_that_cannot_be_read(toy, tmp_path):
    measure(toy)
    path = toy / "toy" / "one.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    (problem,) = problems_of(["toy/one"], toy, tmp_path)
    assert "torn line" in problem
    path.write_bytes(whole.replace(b'"schema": 1', b'"schema": 0'))
    (problem,) = problems_of(["toy/one"], toy, tmp_path)
    assert "line 1: expected a record of schema 1, given 0" in problem


def test_one_failing_figure_costs_no_other(toy, tmp_path, capsys):
    measure(toy)
    (tmp_path / "package" / "toy" / "bad.py").write_text(
        FIGURE.replace("fig, (", "raise KeyError('no such column')\n    fig, (")
    )
    assert not draw_all(["toy/bad", "toy/one"], toy, tmp_path / "out", Console(width=140))
    assert (tmp_path / "out" / "toy" / "one.svg").exists()
    out = capsys.readouterr().out
    assert "no such column" in out
    assert "it grows" in out


def test_the_claim_table_says_claim_paper_result_kind_and_path(tmp_path, capsys):
    show(
        [(Claim("a claim", "Fig. 9", "1.2x", "predicted"), tmp_path.relative_to(tmp_path) / "f.svg")],
        Console(width=140),
    )
    out = capsys.readouterr().out
    assert all(word in out for word in ("a claim", "Fig. 9", "1.2x", "predicted", "f.svg"))


def test_a_claim_of_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind 'guess' of claim 'c'"):
        Claim("c", "none", "1", "guess")


def test_every_kind_is_drawn_its_own_way():
    assert set(style.LINES) == set(style.HATCHES) == set(KINDS)
    assert len({tuple(sorted(look.items())) for look in style.LINES.values()}) == len(KINDS)


def test_an_unknown_figure_names_the_choices():
    done = subprocess.run([sys.executable, "-m", "paper_figs", "no/such"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown figure 'no/such'" in done.stderr
    assert all(name in done.stderr for name in figures())


def test_the_committed_figures_are_what_the_committed_records_draw():
    done = subprocess.run([sys.executable, "-m", "paper_figs", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Page(HTMLParser):
    """Collects the text of a page, and whatever a browser would fetch for it."""

    def __init__(self):
        super().__init__()
        self.text, self.fetched, self.anchors, self.links = "", [], set(), set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.fetched += [
            v for k, v in attrs if k in ("src", "srcset") and not v.startswith("data:image/svg+xml;base64,")
        ]
        self.fetched += [given["href"]] if tag == "link" else []
        self.anchors.add(given.get("id"))
        self.links.add(given.get("href"))

    def handle_data(self, data):
        self.text += data


def test_the_page_shows_everything_and_fetches_nothing(toy, tmp_path):
    measure(toy)
    out = tmp_path / "report.html"
    assert draw_all(["toy/one"], toy, tmp_path / "out", Console(), out)
    page = Page()
    page.feed(out.read_text(encoding="utf-8"))
    assert not page.fetched
    assert page.links - {None} == {"#toy/one"} <= page.anchors | {"#toy/one"}
    assert "toy/one" in page.anchors
    for word in ("it grows", "Fig. 3", "2.0 ms", "15 records of toy/one", "cores", *KINDS):
        assert word in page.text


def test_the_readmes_table_holds_the_brief_claims_and_is_checked(tmp_path):
    rows = [
        (Claim("a | b", "Fig. 1", "1.23x, at length", "measured", brief="1.2x"), "toy/one", "toy/run"),
        (Claim("long", "none", "2.0", "measured"), "toy/one", "toy/run"),
    ]
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    assert "--readme" in problem(readme, rows)
    readme.write_text(text := updated(readme.read_text(), rows))
    assert problem(readme, rows) is None
    assert "| a \\| b | Fig. 1 | 1.2x | measured | [`toy/run`](paper_figs/out/toy/one.svg) |" in text
    assert "long" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert problem(readme, rows[1:])
    with pytest.raises(ValueError, match="expected a table between"):
        updated("nothing", rows)
