"""A hub that does not answer: one request, then the libraries read their cache, and errors come at once."""

import socket
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from lit_fed.data import HuggingFace
from lit_fed.errors import ConfigError
from lit_fed.models import HuggingFaceCausalLM, Timm
from lit_fed.system import packages

constants = pytest.importorskip("huggingface_hub").constants


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Forget whether the hub answered."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    packages._hub_answers.cache_clear()
    yield
    packages._hub_answers.cache_clear()


@pytest.fixture
def silent(monkeypatch):
    """A hub that takes requests and never answers, as behind a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def dataset():
    pytest.importorskip("datasets")
    HuggingFace("owner/name").load()


def tokenizer():
    pytest.importorskip("transformers")
    HuggingFace("owner/name", next_token=True, tokenizer="owner/words")


def weights():
    pytest.importorskip("transformers")
    HuggingFaceCausalLM((8,), 257, weights="owner/name")


def pretrained():
    pytest.importorskip("timm")
    Timm((3, 32, 32), 2, "resnet18", pretrained=True)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("read", "parts"),
    [
        (dataset, ("--data.dataset.path owner/name", "save_to_disk")),
        (tokenizer, ("--data.dataset.tokenizer owner/words", "give a folder that save_pretrained wrote")),
        (weights, ("--model.network.weights owner/name", "save it by save_pretrained and give the folder")),
        (pretrained, ("timm's resnet18", "give a file by --model.network.weights")),
    ],
)
def test_an_error_comes_within_seconds(monkeypatch, capsys, tmp_path, read, parts):
    if read is dataset:
        monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(ConfigError) as caught:
        read()
    assert all(part in str(caught.value) for part in parts)
    assert not slept  # between repeated requests
    said = capsys.readouterr().err
    assert said.count("does not answer") == 1
    assert "HF_HUB_OFFLINE=1" in said
    assert not constants.HF_HUB_OFFLINE  # as before


@contextmanager
def hub(monkeypatch):
    """A hub that answers every request with 404; yields the methods of the requests."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.command)
            self.send_error(404)

        def log_message(self, *given):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_hub_that_answers_is_asked_once(monkeypatch, capsys):
    with hub(monkeypatch) as asked:
        for _ in range(2):
            with packages.hub_or_cache(is_here=False):
                assert not constants.HF_HUB_OFFLINE
    assert asked == ["HEAD"]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("is_here", "offline"), [(True, False), (False, True)])
def test_files_on_this_machine_and_offline_work_need_no_request(monkeypatch, is_here, offline):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with hub(monkeypatch) as asked:
        with packages.hub_or_cache(is_here):
            assert constants.HF_HUB_OFFLINE
        assert offline == constants.HF_HUB_OFFLINE
    assert not asked
