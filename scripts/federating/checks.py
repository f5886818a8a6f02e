"""Checks of federation_check.py: equality, costs, kills, many nodes."""

import csv
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from federating.site import Site, cells, differences, megabytes, wait_until

SOLVER = ["--model.solver.momentum", "0.9", "--model.solver.persist_optimizer", "true"]
ENCODED = ["--model.compression", "TopK", "--model.compression.fraction", "0.1", "--model.compression_scope", "whole"]
PRIVATE = [
    "--model.privacy", "ClientPrivacy", "--model.privacy.noise_multiplier", "0.3", "--model.privacy.clip_norm", "1.0",
    "--model.privacy.delta", "1e-3", "--model.privacy.noise_seed", "0", "--data.client_sampling", "poisson",
    "--data.client_fraction", "0.8",
]  # fmt: skip

RUNS = {
    "FedEM": ["--model.algorithm", "FedEM", *SOLVER],
    "SCAFFOLD": ["--model.algorithm", "SCAFFOLD", *SOLVER],
    "UCFL": ["--model.algorithm", "UCFL", "--model.algorithm.warmup_rounds", "1", *SOLVER],
    "IFCA": ["--model.algorithm", "IFCA", *SOLVER],
    "FedEM inside ClientPrivacy": ["--model.algorithm", "FedEM", *SOLVER, *PRIVATE],
    "FedEM inside compression": ["--model.algorithm", "FedEM", *SOLVER, *ENCODED],
}
"""Runs that must be equal on nodes and in the simulation."""

LARGE = ["--model.algorithm", "FedAvg", "--model.network", "MLP", "--model.network.hidden_sizes", "[512]"]
"""A model of 154 kB."""

WAIT = 4.0
"""Seconds that the server waits for nodes in each round if some are gone."""


def rounds(number: int) -> list[str]:
    """The argument for a number of rounds."""
    return ["--trainer.max_epochs", str(number)]


def equality(folder: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Compare runs on four nodes with the simulation, bit by bit."""
    found, site = [], Site(folder, 4)
    site.start_nodes()
    try:
        for number, (name, given) in enumerate(RUNS.items()):
            given = [*given, *rounds(5)]
            one = site.simulate(f"simulated-{number}", given)
            other = site.finish(f"federated-{number}", site.start_server(f"federated-{number}", given))
            found.append({"run": name, "differences": differences(one, other)})
            say(f"{name}: {'; '.join(found[-1]['differences']) or 'equal'}")
    finally:
        site.stop_nodes()
    return found


def costs(folder: Path, say: Callable[[str], None], num_rounds: int = 20) -> list[dict[str, Any]]:
    """Seconds and bytes of rounds with four nodes started by command, and a node's start-up and memory."""
    found = []
    for name, given in {"FedEM, linear": RUNS["FedEM"], "FedAvg, 154 kB": LARGE}.items():
        site = Site(folder / f"costs-{len(found)}", 4)
        given = [*given, *rounds(num_rounds)]
        simulated = site.simulate("simulated", given)
        server, nodes, begun = site.start_server("federated", given), [], time.monotonic()
        ready = []
        try:
            for one in site.names:
                before = time.monotonic()
                nodes.append(site.start_command(one))
                assert nodes[-1].stderr is not None
                nodes[-1].stderr.readline()  # "… are ready; asking …"
                ready.append(time.monotonic() - before)
            path, memory = site.finish("federated", server), [megabytes(one.pid, "status", "VmHWM") for one in nodes]
        finally:
            for one in nodes:
                one.kill()
                one.communicate()
        counts, table = site.counts("federated"), cells(path / "metrics.csv")
        counted = {way: sum(float(row[f"comm/bytes_{way}"] or 0) for row in table) for way in ("up", "down")}
        found.append(
            {
                "run": name,
                "differences": differences(simulated, path),
                "round simulated": _round_seconds(simulated),
                "round on nodes": _round_seconds(path),
                "seconds in all": time.monotonic() - begun,
                "counted": counted,
                "sent": counts["sent"],
                "received": counts["received"],
                "node is ready after": statistics.median(ready),
                "megabytes of a node": max(memory),
            }
        )
        say(str(found[-1]))
    return found


def _round_seconds(path: Path) -> float:
    """Median seconds of a round's training."""
    with (path / "metrics.csv").open() as file:
        seconds = [float(row["time/round_seconds"]) for row in csv.DictReader(file) if row.get("time/round_seconds")]
    return statistics.median(seconds)


def kills(folder: Path, say: Callable[[str], None], times: int, seed: int, num_rounds: int = 150) -> dict[str, Any]:
    """Kill each process `times` times during runs of FedEM and restart it at once."""
    site, rng, given = Site(folder, 3), random.Random(seed), [*RUNS["FedEM"], *rounds(num_rounds)]
    whole = site.simulate("whole", given)
    turns = [name for name in ("server", *site.names) for _ in range(times)]
    rng.shuffle(turns)
    site.start_nodes()
    record: dict[str, Any] = {
        "times": dict.fromkeys(("server", *site.names), 0),
        "runs": 0,
        "not exact": [],
        "rounds": num_rounds,
    }
    try:
        while turns:
            name = f"killed-{record['runs']}"
            server = site.start_server(name, given)
            begun = time.monotonic()
            while turns and server.poll() is None:
                instant = time.monotonic() + rng.uniform(0, 4)
                while server.poll() is None and time.monotonic() < instant:
                    time.sleep(0.005)
                if server.poll() is not None:
                    break
                who = turns.pop()
                record["times"][who] += 1
                if who == "server":
                    server.kill()
                    server.communicate()
                    server = site.start_server(name, given)
                    _wait_for_round(site, name, server, site.rounds_logged(name) + 1)
                else:
                    node = site.nodes[site.names.index(who)]
                    node.kill()
                    node.start()
            path = site.finish(name, server)
            lost = differences(whole, path)
            record["runs"] += 1
            record["not exact"] += [f"{name}: {one}" for one in lost]
            say(
                f"{name}: {'; '.join(lost) or 'exact'} after {time.monotonic() - begun:.0f} s, {len(turns)} kills to go"
            )
    finally:
        site.stop_nodes()
    return record


def fifty(folder: Path, say: Callable[[str], None], num_nodes: int, seed: int, num_rounds: int = 20) -> dict[str, Any]:
    """Many nodes; a fifth are killed for good during the run, the others continue."""
    site, rng = Site(folder, num_nodes), random.Random(seed)
    given = [*RUNS["FedEM"], *rounds(num_rounds), "--trainer.check_val_every_n_epoch", str(num_rounds)]
    given += ["--data.dataset.missing", "drop", "--data.dataset.seconds", str(WAIT)]
    given += ["--model.faults.on_bad_client", "drop"]
    gone = rng.sample(range(num_nodes), num_nodes // 5)
    at = sorted(rng.uniform(2, num_rounds - 2) for _ in gone)
    begun = time.monotonic()
    site.start_nodes()
    try:
        server, memory = site.start_server("many", given), 0.0
        for node, instant in zip(gone, at, strict=True):
            _wait_for_round(site, "many", server, int(instant))
            living = [one.process.pid for one in site.nodes if one.process.is_alive()]
            memory = max(memory, sum(megabytes(pid, "smaps_rollup", "Pss:") for pid in living))
            site.nodes[node].kill()
        path = site.finish("many", server)
    finally:
        site.stop_nodes()
    seconds, table, summary = (
        time.monotonic() - begun,
        cells(path / "metrics.csv"),
        json.loads((path / "summary.json").read_text()),
    )
    say(f"{num_nodes} nodes, {len(gone)} killed: {len(table)} rows in {seconds:.0f} s")
    return {
        "nodes": num_nodes, "killed": len(gone), "rounds": num_rounds, "wait": WAIT, "seconds": seconds,
        "left out": {name: value for name, value in summary.items() if name.startswith("faults/")},
        "accuracy": summary.get("test/seen/accuracy"), "megabytes of all nodes": memory,
    }  # fmt: skip


def _wait_for_round(site: Site, name: str, server: Any, number: int) -> None:
    """Wait until a run has logged this many rounds or ended."""
    wait_until(lambda: server.poll() is not None or site.rounds_logged(name) >= number, 1200, f"round {number}")
