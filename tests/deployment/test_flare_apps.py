"""What NVFlare calls at the server and at a site, without NVFlare."""

import json
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from background import InBackground, ServingThread, fetch
from in_process import equal_runs, make_nodes

import lit_fed.cli
from lit_fed.command_line.client import settings_in
from lit_fed.command_line.deployed import main
from lit_fed.command_line.flare_job import check_job
from lit_fed.deployment import flare_apps, flare_transport
from lit_fed.deployment.flare_apps import RelayExecutor, run_fit
from lit_fed.deployment.wire import from_bytes
from lit_fed.errors import ConfigError

OWN = {"lit_fed": "1.0", "nvflare": "2.9"}

FIT = [
    "--model.algorithm", "FedEM", "--model.solver.lr", "0.1", "--model.client_trainer", "sequential",
    "--data.batch_size", "4", "--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false",
    "--trainer.accelerator", "cpu", "--name", "run",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _without_nvflare(monkeypatch):
    for module in (flare_apps, flare_transport):
        monkeypatch.setattr(module, "versions", lambda: OWN)
        monkeypatch.setattr(module, "flare", lambda module: None)
    monkeypatch.setattr(flare_apps, "SECONDS_TO_COME", 0.1)
    monkeypatch.setattr(flare_apps, "FLContextKey", SimpleNamespace(SCOPE_PROPERTIES="scope"), raising=False)
    monkeypatch.setattr(flare_apps, "Shareable", dict)


def command(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lit-fed", "flare-job", *arguments])
        main(lambda: lit_fed.cli)


def job_of(tmp_path, name, *arguments):
    """The configuration of a job."""
    given = ["--data.dataset.num_nodes", "3", "--trainer.default_root_dir", str(tmp_path / "runs"), *FIT, *arguments]
    command("--output", str(tmp_path / name), *given)
    return yaml.safe_load((tmp_path / name / "app" / "config" / "fit.yaml").read_text())


# ---------------------------------------------------------------------- the command
def test_a_job_holds_the_whole_configuration_and_no_code(tmp_path, capsys):
    config, job = job_of(tmp_path, "job"), tmp_path / "job"
    files = {str(one.relative_to(job)) for one in job.rglob("*") if one.is_file()}
    of_config = ("config_fed_client.json", "config_fed_server.json", "fit.yaml", "nodes.yaml")
    assert files == {"meta.json", *(f"app/config/{one}" for one in of_config)}
    meta = json.loads((job / "meta.json").read_text())
    assert (meta["name"], meta["min_clients"], meta["deploy_map"]) == ("run", 3, {"app": ["@ALL"]})
    server = json.loads((job / "app/config/config_fed_server.json").read_text())
    assert server["server"] == {"task_request_interval": 0.05}
    assert [one["path"] for one in server["workflows"]] == ["lit_fed.deployment.flare_apps.FitController"]
    client = json.loads((job / "app/config/config_fed_client.json").read_text())
    path = "lit_fed.deployment.flare_apps.RelayExecutor"
    assert client["executors"] == [{"tasks": ["lit_fed"], "executor": {"path": path, "args": {}}}]
    assert config["data"]["dataset"]["class_path"] == "lit_fed.deployment.flare_transport.FlareFederation"
    assert yaml.safe_load((job / "app/config/nodes.yaml").read_text())["model"]["solver"]["lr"] == 0.1
    assert f"next: nvflare job submit -j {job}; results: {tmp_path / 'runs' / 'run'}" in capsys.readouterr().out


def test_a_checkpoint_in_a_configuration_file_is_refused(tmp_path, capsys):
    (tmp_path / "last.yaml").write_text("ckpt_path: null\nname: any\n")
    assert job_of(tmp_path, "job", "--config", str(tmp_path / "last.yaml"))["ckpt_path"] is None
    (tmp_path / "last.yaml").write_text("ckpt_path: last\n")
    with pytest.raises(SystemExit):
        job_of(tmp_path, "other", "--config", str(tmp_path / "last.yaml"))
    assert "ckpt_path" in capsys.readouterr().err


def test_a_job_may_resume_a_run_that_is_on_the_server_alone(tmp_path):
    assert job_of(tmp_path, "last", "--ckpt_path=last")["ckpt_path"] == "last"
    assert job_of(tmp_path, "file", "--ckpt_path", "/srv/last.ckpt")["ckpt_path"] == "/srv/last.ckpt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.default_root_dir", "runs"], "--trainer.default_root_dir is runs; give the whole path of a folder"),
        (["--ckpt_path", "x.ckpt"], "--ckpt_path is x.ckpt; give last, or the whole path of a file on the server"),
        (["--data.dataset", "Digits"], "--data.dataset is Digits, and the samples of this run are on the nodes"),
        (["--trainer.devices", "2"], "--trainer.devices is 2; NVFlare starts one process, give 1"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_is_written(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        command("--output", str(tmp_path / "job"), "--data.dataset.num_nodes", "3", *arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- the server
class Sites:
    """A job whose sites are nodes of this process; one may leave it when the training begins."""

    triggered = False

    def __init__(self, nodes, leaving=None):
        self.nodes, self.leaving = nodes, leaving

    def get_engine(self):
        return self

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in self.nodes]

    def send(self, task, fl_ctx, targets):
        packet = task.data.get("packet")
        if targets[0] == self.leaving and packet is not None and from_bytes(packet).facts["kind"] != "facts":
            task.completion_status = SimpleNamespace(value="client_dead")
        else:
            task.received({"versions": OWN} if packet is None else {"packet": self.nodes[targets[0]].handle(packet)})

    def cancel_task(self, task):
        pass


def job_and_sites(folders, tmp_path, *arguments, leaving=None):
    """The configuration of a job, and the job's sites."""
    config = job_of(tmp_path, "job", *arguments)
    settings = settings_in([str(tmp_path / "job" / "app" / "config" / "nodes.yaml")], lambda: lit_fed.cli)
    return config, Sites(make_nodes(folders, tmp_path / "states", *settings), leaving)


@pytest.fixture
def _tasks_without_nvflare(monkeypatch):
    made = lambda data, received: SimpleNamespace(data=data, received=received, completion_status=None)  # noqa: E731
    monkeypatch.setattr(flare_transport, "task_of", made)


@pytest.mark.usefixtures("_tasks_without_nvflare")
def test_a_site_that_leaves_for_good_ends_the_run_or_is_left_out(folders, tmp_path, capsys):
    config, sites = job_and_sites(folders, tmp_path, "--data.dataset.missing", "stop", leaving="carl")
    with pytest.raises(RuntimeError, match=r"ended with status 1: site carl left the job, .*submit the job again"):
        run_fit(config, (), (sites, sites, sites))
    drop = ["--data.dataset.missing", "drop", "--data.dataset.seconds", "0.3", "--model.faults.on_bad_client", "drop"]
    config, sites = job_and_sites(folders, tmp_path / "drop", *drop, leaving="carl")
    run_fit(config, (), (sites, sites, sites))
    assert "round 0, its node carl" in capsys.readouterr().err
    summary = tmp_path / "drop" / "runs" / "run" / "version_0" / "summary.json"
    assert json.loads(summary.read_text())["rounds"] == 1


@pytest.mark.usefixtures("_tasks_without_nvflare")
def test_a_run_over_nvflare_is_the_simulation_and_goes_on_with_its_own_configuration_alone(folders, tmp_path):
    config, sites = job_and_sites(folders, tmp_path)
    run_fit(config, (), (sites, sites, sites))
    data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(folders["all"])]
    lit_fed.cli.main(["fit", *data, *FIT, "--trainer.default_root_dir", str(tmp_path / "simulated")])
    equal_runs(tmp_path / "simulated" / "run" / "version_0", tmp_path / "runs" / "run" / "version_0")
    other = job_of(tmp_path, "other", "--ckpt_path", "last", "--model.solver.lr", "0.2")
    with pytest.raises(RuntimeError, match=r"ended with status 2: .*of another run: model\.solver\.lr is 0\.2"):
        run_fit(other, (), (sites, sites, sites))
    more = job_of(tmp_path, "more", "--ckpt_path", "last", "--trainer.max_epochs", "2")
    run_fit(more, (), (sites, sites, sites))
    assert json.loads((tmp_path / "runs/run/version_0/summary.json").read_text())["rounds"] == 2


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return json.dumps(job_of(tmp_path_factory.mktemp("job"), "job"))


FOREIGN = {"class_path": "antigravity.K", "init_args": {}}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("model", "network"), FOREIGN, "--model.network names antigravity.K, which is no class of lit_fed"),
        (("model", "network"), "antigravity.K", "--model.network names antigravity.K"),
        (("model", "metrics"), "antigravity.K", "--model.metrics names antigravity.K"),
        (("model", "solver"), {"optimizer": "antigravity.K"}, "--model.solver.optimizer names antigravity.K"),
        (("data", "dataset"), FOREIGN, "class_allow_list in local/resources.json"),
        (("data", "dataset"), '{"class_path": "antigravity.K"}', "--data.dataset is"),
        (("trainer", "callbacks"), [FOREIGN], "--trainer.callbacks names antigravity.K"),
        (("trainer", "logger"), FOREIGN, "--trainer.logger names antigravity.K"),
        (("trainer", "plugins"), "antigravity.K", "--trainer.plugins names antigravity.K"),
        (("config",), "x.yaml", "--fit.yaml has other sections than those of a run"),
        (("init_from",), FOREIGN, "--init_from is no plain value; write the job by `lit-fed flare-job`"),
    ],
)
def test_foreign_classes_of_a_job_are_refused_at_the_server(config, place, value, message):
    changed = json.loads(config)
    *path, last = place
    inside = changed
    for key in path:
        inside = inside[key]
    inside[last] = value
    with pytest.raises(ConfigError, match=message):
        check_job(changed, ())
    assert "antigravity" not in sys.modules


def test_a_job_as_it_was_written_and_a_class_that_the_operator_allows_are_taken(config):
    given = json.loads(config)
    given["trainer"]["callbacks"] = [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor", "init_args": {}}]
    check_job(json.loads(config), ())
    check_job(given, ["lightning.pytorch.callbacks.LearningRateMonitor"])


# ---------------------------------------------------------------------- a site
@pytest.fixture
def relay():
    """A relay at anna, and its context."""
    made = RelayExecutor()
    made.logger = logging.getLogger("relay")
    context = SimpleNamespace(
        get_identity_name=lambda: "anna", get_prop=lambda key: {"lit_fed_listen": "127.0.0.1:0"}, address=None
    )
    yield made, context
    if made._server is not None:
        made._server.close()


def ask(relay, **data):
    made, context = relay
    return made.execute("lit_fed", data, context, None)


QUESTION = {"packet": b"q", "most_bytes": 10, "seconds": 20.0}


def test_the_relay_waits_for_its_client_and_hands_on_packets(relay, caplog):
    assert ask(relay) == {"problem": "client", "versions": OWN}
    assert "start the others with `lit-fed client --server 127.0.0.1:" in caplog.text
    ServingThread(bytes.upper, relay[0]._server.address, None, name="anna")
    assert ask(relay, **QUESTION) == {"packet": b"Q"}
    assert ask(relay) == {"versions": OWN}
    assert ask(relay, **QUESTION | {"most_bytes": 0, "seconds": 0.2}) == {"problem": "late"}


def test_a_client_killed_with_a_packet_gets_it_again(relay, process):
    ask(relay)
    answer, first = InBackground(ask, relay, **QUESTION), process(relay[0]._server)
    assert fetch(first).body == b"q"
    first.close()
    second = process(relay[0]._server)
    second.answer(fetch(second), b"a")
    assert answer.result() == {"packet": b"a"}


def test_a_relay_that_cannot_start_says_so_to_both_sides(relay, caplog):
    relay[1].get_prop = lambda key: {"lit_fed_listen": "0.0.0.0:0"}
    assert ask(relay) == {"problem": "relay", "versions": OWN}  # the cause may be the version of nvflare
    assert "other machines could reach it, and there are no certificates" in caplog.text


def test_a_relay_imports_no_torch():
    code = "import lit_fed.deployment.flare_apps, sys; print({'torch', 'numpy', 'lightning'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_another_nvflare_is_refused_with_both_versions(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(flare_apps, "optional_package", lambda *words: None)
    monkeypatch.setattr(flare_apps.metadata, "version", lambda name: "2.10.1")
    with pytest.raises(
        ConfigError, match=r"nvflare 2.10 is installed here, and lit_fed \S+ runs in jobs of nvflare>=2.9"
    ):
        flare_apps.flare("apis.executor")


def test_without_nvflare_the_message_says_what_to_install(monkeypatch):
    monkeypatch.undo()
    for name in ("nvflare", "nvflare.apis", "nvflare.apis.executor"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'pip install "nvflare>=2.9,<2.10" \(the extra nvflare\)'):
        flare_apps.flare("apis.executor")
