"""The transport over the tasks of an NVFlare job, with an engine that loses, delays and spoils them."""

import threading
from types import SimpleNamespace

import pytest

from lit_fed.deployment import flare_transport
from lit_fed.deployment.flare_apps import PROBLEMS
from lit_fed.deployment.flare_transport import FlareFederation, FlareTransport
from lit_fed.errors import ConfigError, LostNodesError

PAUSE = 0.002
OWN = {"lit_fed": "1.0", "nvflare": "2.9"}


class Engine:
    """A job of NVFlare whose sites answer in capitals; it is controller, signal and context in one.

    Attributes:
        fates: outcomes of the next tasks of each site: `answer`, `lose`, `late`, a word that NVFlare says of a task
            that ended without an answer, or the reply.
        sent: site and data of every task.
        cancelled: tasks that were taken back.
    """

    triggered = False

    def __init__(self, *sites):
        self.sites, self.fates, self.sent, self.cancelled = sites, {}, [], []

    def get_engine(self):
        return self

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in self.sites]

    def send(self, task, fl_ctx, targets):
        (site,) = targets
        self.sent.append((site, task.data))
        fate = (self.fates.get(site) or ["answer"]).pop(0)
        packet = task.data.get("packet")
        reply = {"versions": OWN} if packet is None else {"packet": packet.upper()}
        if fate == "late":
            threading.Timer(3 * PAUSE, task.received, [reply]).start()
        elif fate == "answer" or isinstance(fate, dict):
            task.received(reply if fate == "answer" else fate)
        elif fate != "lose":
            task.completion_status = SimpleNamespace(value=fate)

    def cancel_task(self, task):
        self.cancelled.append(task.data.get("packet"))


@pytest.fixture(autouse=True)
def _without_nvflare(monkeypatch):
    monkeypatch.setattr(flare_transport, "FIRST_PAUSE", PAUSE)
    monkeypatch.setattr(flare_transport, "SECONDS_BETWEEN_LOOKS", PAUSE)
    monkeypatch.setattr(flare_transport, "versions", lambda: OWN)
    made = lambda data, received: SimpleNamespace(data=data, received=received, completion_status=None)  # noqa: E731
    monkeypatch.setattr(flare_transport, "task_of", made)


@pytest.fixture
def engine():
    return Engine("ben", "anna")


def transport(engine, goes_on=False):
    return FlareTransport(engine, engine, engine, goes_on=goes_on)


def ask(engine, seconds=5.0, goes_on=False, **packets):
    packets = packets or {"anna": b"a", "ben": b"b"}
    return transport(engine, goes_on).call(packets, most_bytes=dict.fromkeys(packets, 10), seconds=seconds)


def test_each_site_gets_its_packet_once(engine):
    engine.fates = {"anna": ["late"]}
    assert ask(engine) == {"anna": b"A", "ben": b"B"}
    assert [(site, data["packet"], data["most_bytes"]) for site, data in engine.sent] == [
        ("anna", b"a", 10), ("ben", b"b", 10)
    ]  # fmt: skip
    assert all(4 < data["seconds"] <= 5 for _, data in engine.sent)
    assert not engine.cancelled


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ({"problem": "client"}, PROBLEMS["client"]), ({"problem": "late"}, PROBLEMS["late"]),
        ({}, "no answer of lit_fed; its log says why"), ({"packet": "text"}, "no answer of lit_fed"),
        ({"packet": b"x" * 11}, "11 bytes where at most 10 were asked for"),
        ("error", "NVFlare ended its task (error)"),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_used_are_followed_by_the_same_packet(engine, fate, said, capsys):
    engine.fates = {"ben": [fate, fate]}
    assert ask(engine) == {"anna": b"A", "ben": b"B"}
    assert [site for site, _ in engine.sent] == ["anna", "ben", "ben", "ben"]
    assert capsys.readouterr().err.count(f"Z site ben: {said}") == 1


def test_a_task_without_an_answer_is_taken_back(engine):
    engine.fates = {"ben": ["lose"]}
    assert ask(engine, 0.02) == {"anna": b"A"}
    assert engine.cancelled == [b"b"]
    assert ask(engine, ben=b"b") == {"ben": b"B"}


def test_a_site_that_left_the_job_ends_a_run_that_needs_it(engine):
    engine.fates = {"ben": ["client_dead"]}
    with pytest.raises(LostNodesError, match="site ben left the job, and NVFlare never gives a running job to a site"):
        ask(engine)


def test_a_run_that_drops_nodes_goes_on_without_a_site_that_left(engine):
    engine.fates = {"ben": ["client_dead"] * 100}
    assert ask(engine, 0.05, goes_on=True) == {"anna": b"A"}


def test_an_aborted_job_ends_the_run(engine):
    engine.fates, engine.triggered = {"ben": ["lose"]}, True
    with pytest.raises(LostNodesError, match="has aborted the job; if a site failed, `Failing job` in"):
        ask(engine)


def test_the_run_begins_when_all_clients_are_there(engine, capsys):
    engine.fates = {"ben": [{"problem": "client", "versions": OWN}]}
    assert transport(engine).wait_for(2, 5.0) == ["anna", "ben"]
    assert f"site ben: {PROBLEMS['client']}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "other"), [("lit_fed", "0.9"), ("nvflare", "2.10"), ("nvflare", None), ("lit_fed", "9\x1b" + "9" * 99)]
)
def test_another_version_at_a_site_is_refused_with_both(engine, name, other):
    engine.fates = {"ben": [{"problem": "relay", "versions": OWN | {name: other}}]}
    with pytest.raises(
        ConfigError, match=f"site ben has version (0.9|2.10|None|99*) of {name}, and the server {OWN[name]}"
    ):
        transport(engine).wait_for(2, 5.0)


@pytest.mark.parametrize(
    ("num_nodes", "fates", "message"),
    [
        (3, {}, r"the job runs on 2 sites \(anna, ben\), and --data.dataset.num_nodes is 3; start the others"),
        (2, {"ben": ["lose"]}, r"waited 0.02 s for 2 sites, and 1 came \(anna\); see to the logs"),
        (2, {"ben": [{}] * 99}, r"waited 0.02 s for 2 sites, and 1 came \(anna\)"),
    ],
)
def test_too_few_sites_are_refused_by_name(engine, num_nodes, fates, message):
    engine.fates = fates
    with pytest.raises(ConfigError, match=message):
        transport(engine).wait_for(num_nodes, 0.02)


def test_a_site_has_the_name_of_a_node():
    with pytest.raises(ConfigError, match="the site 'a b': no name for a node"):
        transport(Engine("a b")).wait_for(1, 1.0)


def test_the_data_set_is_for_runs_of_nvflare():
    with pytest.raises(ConfigError, match="is for runs that NVFlare starts; write their job with `lit-fed flare-job`"):
        FlareFederation().connect()
