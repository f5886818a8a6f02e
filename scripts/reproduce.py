"""Makes tables and figures of the papers from configs/experiment/, and writes their pages.

    python scripts/reproduce.py --list
    python scripts/reproduce.py --commands fedem-table2
    python scripts/reproduce.py fedem-table2 [--data.root DIR] [--seeds 1 2 3] [--scale reduced] [--jobs 2]

What has a record under docs/results/runs/SCALE/ is not run again; a run that was cut short goes on. Then
docs/results/TABLE.md is written from the records, and its picture beside it. `smoke` is a run through with a few drawn
samples, its page goes to runs/smoke/; `reduced` fits a laptop and says what it reduced; `paper` is the paper's setting.
DIR holds what docs/data.md describes.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one run, one core; before torch is imported

from reproduction import checks, every_algorithm, fedem, fedem_figures, federico, quickstart, ucfl
from reproduction.markdown import fill, grid
from reproduction.runs import ROOT, Kept, Run, command_line, make_missing
from reproduction.tables import PAGES, SCALES, Results, Scale, Table, page

from lit_fed.system.files import write_atomically

MODULES = (fedem, fedem_figures, ucfl, federico, every_algorithm, checks, quickstart)
TABLES = {table.name: table for module in MODULES for table in module.TABLES}  # all tables and figures, by name


def kept_of(scale: Scale, output: Path) -> Kept:
    """Where the records of a scale lie."""
    return Kept(output / "runs" / scale)


def write(table: Table, scale: Scale, seeds: Sequence[int], output: Path) -> Path:
    """Write the page of a table, and its picture."""
    kept = kept_of(scale, output)
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{table.name}{'-paper' if scale == 'paper' else ''}.md"
    draw(table, kept, scale, seeds, path.with_suffix(".png"))
    write_atomically(path, page(table, kept, scale, seeds))
    if scale == "reduced":
        write_atomically(output / "README.md", index(kept))
    return path


def draw(table: Table, kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """Draw the picture of a table, if it has one and runs were made."""
    if table.picture is not None and kept.all(table.runs(scale, seeds)):
        table.picture(Results(kept, scale, seeds, table.head), path)


def make(table: Table, seeds: Sequence[int], output: Path, chosen: argparse.Namespace) -> Path:
    """Run what is missing, then write the page."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    kept, runs = kept_of(chosen.scale, output), list(dict.fromkeys(table.runs(chosen.scale, seeds)))
    runs = [run for run in runs if fnmatch(run.name, chosen.only)]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task(table.name, total=len(runs), completed=len(runs) - len(kept.missing(runs)))

        def done(run: Run) -> None:
            progress.advance(bar)
            print(f"{table.name}: {run.name} is done", flush=True)

        def extra(run: Run) -> tuple[str, ...]:
            return (*folder_of_data(run, chosen.scale, chosen.root), *chosen.arguments)

        missing = kept.missing(runs)
        make_missing(runs, kept, extra, chosen.jobs, done, None if chosen.scale == "smoke" else chosen.unfinished)
    if runs and not missing:
        stored = f"the stored records of all {len(runs)} runs in {kept.folder}"
        print(f"{table.name}: drew {stored}, and ran nothing; --output DIR runs them into another folder", flush=True)
    return write(table, chosen.scale, seeds, output)


def folder_of_data(run: Run, scale: Scale, root: Path) -> tuple[str, ...]:
    """Where a run reads its data; drawn data lie nowhere."""
    config = (ROOT / f"configs/experiment/{run.config}.yaml").read_text()
    if scale == "smoke" or "root:" not in config:
        return ()
    path = root / "shakespeare" if "class_path: Shakespeare" in config else root
    return ("--data.dataset.root", str(path.resolve()))


def index(kept: Kept) -> str:
    """The page that lists the pages of the reduced scale."""
    rows = []
    for table in TABLES.values():
        runs = list(dict.fromkeys(table.runs("reduced", table.seeds)))
        made = f"{len(kept.all(runs))} of {len(runs)}"
        head = table.head
        rows.append([f"[{head['title']}]({table.name}.md)", table.found, head["source"], head["needs"], made])
    listed = grid(["page", "found", "source", "data", "runs made"], rows)
    return "\n".join([*fill((PAGES / "README.md").read_text(), {"table": listed}), ""])


def show(seeds: Sequence[int] | None) -> None:
    """Print what there is, what it needs and costs, and how much of it was run."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title="Tables and figures")
    for head in ("name", "shows", "data", "reduced: cost", "run", "paper: cost", "run"):
        grid.add_column(head)
    for table in TABLES.values():
        cells = [table.name, table.head["title"], table.head["needs"]]
        for scale in SCALES[1:]:
            runs = list(dict.fromkeys(table.runs(scale, seeds or table.seeds)))
            made = len(kept_of(scale, ROOT / "docs/results").all(runs))
            cells += [table.head["cost"][scale], f"{made} of {len(runs)}"]
        grid.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(grid)


def main(arguments: Sequence[str] | None = None) -> None:
    """List, or make tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="*", metavar="TABLE", choices=[*TABLES, "all", []], help="names, or all")
    parser.add_argument("--list", action="store_true", help="what there is, and what of it was run")
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"), help="where the data sets lie")
    parser.add_argument("--seeds", type=int, nargs="+", help="training seeds; by default those of the table")
    parser.add_argument("--scale", choices=SCALES, default="reduced")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a process of its own")
    parser.add_argument("--output", type=Path, help="of pages and records; by default docs/results, or runs/smoke")
    unfinished = "where runs lie until they have a record; what was cut short goes on there"
    parser.add_argument("--unfinished", type=Path, default=ROOT / "runs/unfinished", help=unfinished)
    parser.add_argument("--commands", action="store_true", help="print the command of every run, and run nothing")
    parser.add_argument("--write", action="store_true", help="write the pages from what is there, and run nothing")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs to make, with stars")
    every = "the last option: arguments of every run, such as --trainer.accelerator gpu"
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help=every)
    chosen = parser.parse_args(arguments)
    if chosen.list or not chosen.table:
        show(chosen.seeds)
        return
    output: Path = chosen.output or ROOT / ("runs/smoke" if chosen.scale == "smoke" else "docs/results")
    for name in TABLES if "all" in chosen.table else chosen.table:
        table = TABLES[name]
        seeds = chosen.seeds or ((1,) if chosen.scale == "smoke" else table.seeds)
        if chosen.commands:
            print(*map(command_line, dict.fromkeys(table.runs(chosen.scale, seeds))), sep="\n")
            continue
        path = write(table, chosen.scale, seeds, output) if chosen.write else make(table, seeds, output, chosen)
        print(f"{name}: {path}", flush=True)


if __name__ == "__main__":
    main()
