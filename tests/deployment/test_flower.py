"""Real federations over Flower: a SuperLink and two SuperNodes with TLS and keys, equal to the simulation."""

import time

import pytest
from in_process import CLIENTS, equal_runs, node_folders

from lit_fed.cli import main

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
from flower_site import Site, kill

pytestmark = pytest.mark.slow

NODES = {name: CLIENTS[name] for name in ("anna", "ben")}

FIT = [
    "--model.client_trainer", "sequential", "--model.solver.lr", "0.1", "--model.solver.momentum", "0.9",
    "--model.solver.persist_optimizer", "true", "--data.batch_size", "4", "--trainer.accelerator", "cpu",
    "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "0",
]  # fmt: skip

UCFL = ["--model.algorithm", "UCFL", "--model.algorithm.warmup_rounds", "1"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("clients"), NODES)


@pytest.fixture(scope="module")
def site(tmp_path_factory, folders):
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        for name in NODES:
            made.add(name, folders[name])
        yield made
    finally:
        made.close()


def simulated(folders, out, *arguments):
    data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(folders["all"])]
    main(["fit", *data, *FIT, *arguments, "--name", "run", "--trainer.default_root_dir", str(out / "simulated")])
    return out / "simulated" / "run" / "version_0"


def app_of(out, *arguments):
    given = [*FIT, *arguments, "--name", "run", "--trainer.default_root_dir", str(out / "flower")]
    main(["flower-app", "--data.dataset.num_nodes", str(len(NODES)), *given, "--output", str(out / "app")])
    return out / "app", out / "flower" / "run" / "version_0"


def test_fedem_equals_the_simulation(site, folders, tmp_path):
    app, folder = app_of(tmp_path, "--model.algorithm", "FedEM")
    run = site.begin(app)
    wanted = simulated(folders, tmp_path, "--model.algorithm", "FedEM")
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)


def test_a_node_killed_in_a_round_changes_nothing(site, folders, tmp_path):
    """UCFL, whose clients are each sent a state of their own."""
    app, folder = app_of(tmp_path, *UCFL)
    run = site.begin(app)
    wanted = simulated(folders, tmp_path, *UCFL)
    site.wait_for(folder / "checkpoints" / "last.ckpt")
    kill(site.nodes["ben"])
    site.restart("ben", folders["ben"])
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)


def test_a_server_killed_in_a_run_goes_on_from_its_checkpoint(site, folders, tmp_path):
    app, folder = app_of(tmp_path, "--model.algorithm", "SCAFFOLD")
    run = site.begin(app)
    wanted = simulated(folders, tmp_path, "--model.algorithm", "SCAFFOLD")
    site.wait_for(folder / "checkpoints" / "last.ckpt")
    kill(site.superlink)
    time.sleep(1.0)
    site.superlink = site.start_superlink()
    run = site.begin(app, ckpt_path="last")
    ended = site.end(run)
    assert ended["status"] == "finished:completed", site.command("log", run, "site", "--show")
    equal_runs(wanted, folder)
