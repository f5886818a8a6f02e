"""Tells how the source is laid out: rooms, lengths, arrows between rooms, what one has to read to follow a round.

    python scripts/code_shape.py                                  # as tables
    python scripts/code_shape.py --picture docs/images/rooms.svg  # and a picture of the rooms, drawn from the imports
    python scripts/code_shape.py --option                         # and the files that an option of `fit` passes

An algorithm is a file of `lit_fed/algorithms/`, or a folder there. Lines are those of files; a function's are its own,
with its docstring.
"""

import argparse
import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "lit_fed"

ROOMS = {
    "errors": "errors and warnings",
    "system": "files, locks, ranks, memory, what settings may name",
    "core": "pure functions: tasks, seeds, solvers, graphs, mixtures",
    "metrics": "sums per client, and the figures that papers report",
    "models": "networks, built from the sizes of the data",
    "data": "data sets, partitions, populations",
    "wrappers": "privacy, compression, robust rules, secure sums, faults",
    "algorithms": "one paper is one file",
    "clients": "client trainers, and the store of client states",
    "rounds": "the round, without Lightning",
    "serving": "clients served between rounds",
    "deployment": "clients on their own machines: packets, nodes, HTTPS, Flower",
    "training": "the Lightning shell: module, loops, checkpoints, output",
    "pictures": "figures of runs and of data",
    "callbacks": "server, evaluation, reports, progress, W&B",
    "command_line": "what the command line understands and says",
    "benchmark": "tasks, protocol, records and comparisons of the benchmark",
    "trainer": "FederatedTrainer",
    "cli": "FederatedCLI",
    "__main__": "python -m lit_fed",
}
"""The rooms from the bottom up: each may import from itself and from those before it."""

CLOSURES = {"algorithms/fedavg.py": 15, "rounds.py": 35, "cli.py": 195}
"""How many files one reads at most to follow an algorithm, a round and the command line: imports, and theirs."""

SHORTEST_FILE = 150  # lines from which a file may stand for itself; a shorter one needs two files that import it

OWN_FILES = (
    "algorithms/", "callbacks/", "command_line/", "data/data_sets/", "data/partitions/", "data/poison/", "models/",
    "wrappers/compression/codecs/", "wrappers/robust/attacks/", "wrappers/robust/rules/", "__main__.py",
)  # fmt: skip
"""Where a file is one thing that its user chooses by name: an algorithm, a command, a data set, a rule."""

LONGEST_CLASS = 115  # "at most about 110", without the docstring


def parsed(package: Path) -> dict[str, ast.Module]:
    """Syntax tree of each file, by its path in the package."""
    return {str(path.relative_to(package)): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}


def long_classes(package: Path) -> dict[str, int]:
    """The number of lines of each class of an algorithm that has too many; the interface in base.py is none."""
    found = {}
    for path, module in parsed(package / "algorithms").items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and path != "base.py":
                first = node.body[0]
                docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) is not None else 0
                found[f"algorithms/{path}: {node.name}"] = (node.end_lineno or 0) - node.lineno + 1 - docstring
    return {name: count for name, count in found.items() if count > LONGEST_CLASS}


# ---------------------------------------------------------------------- imports
def modules_of(package: Path) -> dict[str, ast.Module]:
    """Syntax tree of each module, by its name."""
    trees = {f"lit_fed.{path.removesuffix('.py').replace('/', '.')}": tree for path, tree in parsed(package).items()}
    return {name.removesuffix(".__init__"): tree for name, tree in trees.items()}


def imports(module: ast.Module, modules: Iterable[str]) -> set[str]:
    """Which of the package's modules a file imports, by their names; also those for annotations alone."""
    known, names = set(modules), set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inside if inside <= known else inside | {str(node.module)}
    return names & known


def owner(name: str) -> str:
    """The algorithm that a module is or belongs to, else the module."""
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["algorithms"] and parts[2:] not in ([], ["base"]) else name


def used_by_one_algorithm(package: Path) -> dict[str, str]:
    """The algorithm that alone uses a module of core, directly or by way of other modules of core."""
    trees = modules_of(package)
    users = defaultdict(set)
    for name, module in trees.items():
        for used in imports(module, trees):
            users[used].add(name)

    def outside_core(name: str, seen: set[str]) -> set[str]:
        seen.add(name)
        inside = {one for one in users[name] if one.startswith("lit_fed.core.")}
        found = {owner(one) for one in users[name] - inside}
        return found.union(*(outside_core(one, seen) for one in inside - seen))

    found = {name: outside_core(name, set()) for name in trees if name.startswith("lit_fed.core.")}
    algorithms = {owner(name) for name in trees} - set(trees)
    return {name: next(iter(who)) for name, who in found.items() if len(who) == 1 and who <= algorithms}


def room_of(name: str) -> str:
    """The room that a module stands in; that of `lit_fed` itself, which hands on names, is ''."""
    return [*name.split("."), ""][1]


def arrows(package: Path) -> Counter[tuple[str, str]]:
    """Imports from one room into another, by both names."""
    trees = modules_of(package)
    pairs = ((room_of(name), room_of(used)) for name, tree in trees.items() for used in imports(tree, trees))
    return Counter((user, used) for user, used in pairs if user and used and user != used)


def arrows_back(package: Path, rooms: Iterable[str] = ROOMS) -> dict[str, str]:
    """What imports from a room above its own, or stands in a room that is not in the list."""
    order, trees = list(rooms), modules_of(package)
    found = {name: "its room is not in the list" for name in trees if room_of(name) not in ["", *order]}
    for name, tree in trees.items():
        if name in found or not room_of(name):
            continue
        above = order[order.index(room_of(name)) + 1 :]
        back = sorted(used for used in imports(tree, trees) if room_of(used) in above)
        if back:
            found[name] = f"imports {', '.join(back)}"
    return found


def file_of(package: Path, name: str) -> Path:
    """The file of a module."""
    path = package.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def closure(package: Path, path: str) -> set[str]:
    """The modules that a file imports, directly or not, and itself; `lit_fed`, which hands on names, is not counted."""
    trees = modules_of(package)
    found: set[str] = set()
    waiting = ["lit_fed." + path.removesuffix(".py").replace("/", ".")]
    while waiting:
        name = waiting.pop()
        if name not in found and name != "lit_fed":
            found.add(name)
            waiting += imports(trees[name], trees)
    return found


def lonely_files(package: Path) -> dict[str, int]:
    """The number of lines of each short file that fewer than two others import."""
    trees, users = modules_of(package), Counter[str]()
    for tree in trees.values():
        users.update(imports(tree, trees))
    found = {}
    for name in trees:
        path = file_of(package, name)
        place, lines = str(path.relative_to(package)), len(path.read_text().splitlines())
        if lines < SHORTEST_FILE and users[name] < 2 and path.name != "__init__.py" and not place.startswith(OWN_FILES):
            found[place] = lines
    return found


# ---------------------------------------------------------------------- the way of an option
OPTION, VALUE = "model.compression_feedback", "ef21"


def passed_by() -> set[str]:
    """The files that an option of the command line passes, from the arguments of `fit` to the wrapped algorithm.

    A file counts if one of its functions is called with the value, with arguments or a configuration that contain it,
    or with settings that have it as a field.
    """
    from lit_fed.cli import FederatedCLI

    class Unrun(FederatedCLI):
        def _run_subcommand(self, subcommand: str) -> None:
            """Run nothing."""

    files: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents and any(map(_carries, list(frame.f_locals.values()))):
            files.add(str(path.relative_to(PACKAGE)))

    given = "fit --data.dataset Digits --data.num_clients 4 --model.algorithm FedAvg --model.compression TopK"
    sys.setprofile(note)
    try:
        Unrun([*given.split(), f"--{OPTION}", VALUE, "--trainer.accelerator", "cpu", "--trainer.logger", "false"])
    finally:
        sys.setprofile(None)
    return files


def _carries(value: Any, depth: int = 0) -> bool:
    """Whether this is the value, a list or a configuration that contains it, or settings that have it as a field."""
    if isinstance(value, str):
        return value == VALUE
    if hasattr(value, "client_init"):  # the wrapped algorithm, at the end of the way
        return False
    if hasattr(value, "_fields") or is_dataclass(value):
        named = value if isinstance(value, tuple) else vars(value).values()
        return any(isinstance(one, str) and one == VALUE for one in named)
    if isinstance(value, list | tuple):
        return depth == 0 and any(_carries(one, 1) for one in value)
    inside = vars(value) if isinstance(value, argparse.Namespace) else value
    return isinstance(inside, dict) and depth < 4 and any(_carries(one, depth + 1) for one in inside.values())


# ---------------------------------------------------------------------- what is shown
def rows(package: Path) -> list[tuple[str, int, int, int, str]]:
    """For each room its files, lines, functions, and the median and the 90th percentile of the functions' lines."""
    found = []
    for room in ROOMS:
        paths = sorted((package / room).rglob("*.py")) or [package / f"{room}.py"]
        texts = [path.read_text() for path in paths]
        nodes = [one for text in texts for one in ast.walk(ast.parse(text))]
        functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        lengths = [(one.end_lineno or 0) - one.lineno + 1 for one in functions]
        spread = f"{median(lengths):.0f} / {quantiles(lengths, n=10)[-1]:.0f}" if len(lengths) > 1 else ""
        found.append((room, len(paths), sum(len(text.splitlines()) for text in texts), len(lengths), spread))
    return found


def show(package: Path) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110)
    table = Table("room", "files", "lines", "functions", "median / p90 lines", "imports from", title="Rooms, bottom up")
    found = arrows(package)
    for room, *numbers in rows(package):
        below = ", ".join(f"{used} {count}" for (user, used), count in sorted(found.items()) if user == room)
        table.add_row(room, *map(str, numbers), below)
    console.print(table)
    lines = {name: len((package / name).read_text().splitlines()) for name in ("rounds.py", "algorithms/fedem.py")}
    console.print(f"to follow a round of FedEM: {sum(lines.values())} lines in {len(lines)} files, {lines}")
    console.print(f"core files that one algorithm alone uses: {used_by_one_algorithm(package) or 0}")
    console.print(f"arrows that point back: {arrows_back(package) or 0}")
    console.print(f"short files that fewer than two others import: {lonely_files(package) or 0}")
    console.print(_counts(package))


def _counts(package: Path) -> Any:
    """The table of the size of the repository."""
    from rich.table import Table

    root, table = package.parent, Table("what", "count", title="Size")
    sources = [path.read_text() for path in package.rglob("*.py")]
    sizes = _lines(sources), sum(map(code_lines, sources)), len(sources)
    table.add_row("lit_fed: lines / of code / files", " / ".join(map(str, sizes)))
    for folder, kind in (("tests", "py"), ("scripts", "py"), ("docs", "md")):
        table.add_row(f"{folder}: lines", str(_lines(path.read_text() for path in (root / folder).rglob(f"*.{kind}"))))
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    table.add_row("files in the repository", str(len(listed.splitlines())))
    for path, most in CLOSURES.items():
        table.add_row(f"files read for {path}", f"{len(closure(package, path))} (at most {most})")
    table.add_row("class attributes of Algorithm", str(len(flags(package))))
    return table


def _lines(texts: Iterable[str]) -> int:
    return sum(len(text.splitlines()) for text in texts)


def code_lines(text: str) -> int:
    """The number of lines that are neither blank nor comment nor docstring."""
    tree = ast.parse(text)
    strings = [one.value for one in ast.walk(tree) if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
    said = {line for one in strings for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in said for number, line in lines)


def flags(package: Path) -> list[str]:
    """The class attributes of `Algorithm`, which a subclass may set."""
    tree = ast.parse((package / "core/algorithm.py").read_text())
    (interface,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Algorithm")
    declared = [one for one in interface.body if isinstance(one, ast.AnnAssign)]
    return [ast.unparse(one.target) for one in declared if "ClassVar" in ast.unparse(one.annotation)]


def draw_rooms(package: Path, path: Path) -> None:
    """Draw the rooms as floors, and for each a lane with the rooms that import from it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from lit_fed.pictures.style import COLUMN, FULL_WIDTH, save

    found, height = arrows(package), {room: level for level, room in enumerate(ROOMS) if room != "__main__"}
    with mpl.rc_context(COLUMN):
        figure = Figure(figsize=(0.9 * FULL_WIDTH, 0.33 * len(height)), layout="constrained")
        axes = figure.subplots()
        for room, level in height.items():
            axes.barh(level, 4.2, height=0.72, color="#dce6f2", edgecolor="#1b4f8a", linewidth=0.6)
            axes.text(0.08, level, room, va="center", weight="bold")
            axes.text(1.35, level, ROOMS[room], va="center", fontsize=6.5)
        _draw_arrows(axes, found, height)
        axes.set_xlim(0, 4.4 + 0.13 * len(height))
        axes.axis("off")
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)


def _draw_arrows(axes: Any, found: Counter[tuple[str, str]], height: dict[str, int]) -> None:
    """A line for each room that others import from, in a lane of its own: dots are rooms that do."""
    used = [room for room in height if any(below == room and user in height for user, below in found)]
    for lane, below in enumerate(used):
        users = [height[user] for user, room in found if room == below and user in height]
        x, colour = 4.35 + 0.13 * lane, "#8a8a8a" if lane % 2 else "#1b4f8a"
        axes.plot([x, x], [height[below], max(users)], color=colour, linewidth=0.8)
        axes.plot([x] * len(users), users, linestyle="", marker="o", markersize=2.6, color=colour)
        axes.plot([x], [height[below]], marker="v", markersize=4, color=colour)


def main() -> None:
    """Show the tables, and draw the picture if one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="file of the picture, .png, .svg or .pdf")
    parser.add_argument("--option", action="store_true", help=f"trace --{OPTION}")
    chosen = parser.parse_args()
    show(PACKAGE)
    if chosen.option:
        files = passed_by()
        print(f"--{OPTION} passes {len(files)} files: {', '.join(sorted(files))}")
    if chosen.picture is not None:
        draw_rooms(PACKAGE, chosen.picture)


if __name__ == "__main__":
    main()
