"""Certificates of a federation: what is written, for whom it is good, and what is refused."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from lit_fed.deployment import certificates
from lit_fed.deployment.certificates import make_certificates
from lit_fed.errors import ConfigError
from lit_fed.system import files
from lit_fed.system.files import whole_file


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_server_and_nodes_get_their_pairs(tmp_path):
    output = tmp_path / "deep" / "tls"
    made = make_certificates(["server.example", "192.0.2.1", "::1"], ["anna", "b.e-n_2"], output, days=30)
    assert made == [output / "server.pem", output / "anna", output / "b.e-n_2"]
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    pairs = {f"{name}/{file}" for name in ("anna", "b.e-n_2") for file in ("ca.pem", "node.key", "node.pem")}
    assert files == {"ca.key", "ca.pem", "server.key", "server.pem", *pairs}
    for path in output.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((output / "anna").stat().st_mode) == 0o700
    authority, server, node = read(output / "ca.pem"), read(output / "server.pem"), read(output / "anna" / "node.pem")
    for one in (authority, server, node):
        one.verify_directly_issued_by(authority)
        assert one.not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=50)
    assert timedelta(29) < server.not_valid_after_utc - datetime.now(UTC) < timedelta(31)
    hosts = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["server.example"]
    assert [str(one) for one in hosts.get_values_for_type(x509.IPAddress)] == ["192.0.2.1", "::1"]
    assert node.subject.rfc4514_string() == "CN=anna"
    assert node.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is True


def test_nodes_are_added_and_nothing_is_written_over(tmp_path):
    make_certificates(["localhost"], ["anna"], tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert make_certificates([], ["ben"], tmp_path) == [tmp_path / "ben"]
    read(tmp_path / "ben" / "node.pem").verify_directly_issued_by(read(tmp_path / "ca.pem"))
    for server, clients, said in [
        (["localhost"], ["carl"], "server.pem is there already; leave --server out to add clients"),
        ([], ["carl", "anna"], "anna is there already; leave anna out"),
    ]:
        with pytest.raises(ConfigError, match=said):
            make_certificates(server, clients, tmp_path)
    assert not (tmp_path / "carl").exists()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("server", "clients", "days", "said"),
    [
        (["localhost"], ["../anna"], 1, "--clients '../anna': no name for a node; give at most 64 letters"),
        (["localhost"], ["x" * 65], 1, "no name for a node"),
        (["localhost"], [""], 1, "no name for a node"),
        (["localhost"], ["anna", "Anna"], 1, "--clients 'anna': the name is taken"),
        (["localhost"], ["server.pem"], 1, "--clients 'server.pem': the name is taken"),
        (["server.example:8443"], [], 1, "--server 'server.example:8443': no host; give names or addresses"),
        (["*.example"], [], 1, "no host"),
        ([""], [], 1, "no host"),
        ([], ["anna"], 1, "--server is not given, and .* has no server.pem; give the server's hosts"),
        ([], [], 1, "neither --server nor --clients is given"),
        (["localhost"], [], 0, "--days is 0; give a whole number from 1"),
    ],
)
def test_what_will_not_do_is_refused_before_anything_is_written(tmp_path, server, clients, days, said):
    with pytest.raises(ConfigError, match=said):
        make_certificates(server, clients, tmp_path / "tls", days)
    assert not (tmp_path / "tls").exists()


def test_half_an_authority_or_a_damaged_one_is_refused(tmp_path):
    make_certificates(["localhost"], [], tmp_path)
    other = tmp_path / "other"
    make_certificates(["localhost"], [], other)
    key = (tmp_path / "ca.key").read_bytes()
    for wrong in (b"damaged", (other / "ca.key").read_bytes()):
        (tmp_path / "ca.key").write_bytes(wrong)
        with pytest.raises(ConfigError, match=r"ca.pem and ca.key are damaged, or of two CAs; bring those"):
            make_certificates([], ["anna"], tmp_path)
    assert not (tmp_path / "anna").exists()
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"of its CA there is ca.pem alone; bring the other part"):
        make_certificates([], ["anna"], tmp_path)
    (tmp_path / "ca.key").write_bytes(key)
    make_certificates([], ["anna"], tmp_path)


@pytest.mark.parametrize("kill", range(1, 8))
def test_an_interrupted_command_is_run_again(tmp_path, monkeypatch, kill):
    """After a kill ahead of each of its files the same command completes the pairs, or says what is missing."""

    def until(path, **options):
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return whole_file(path, **options)

    left, command = kill, (["localhost"], ["anna"], tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "whole_file", until)
        patched.setattr(files, "whole_file", until)
        with pytest.raises(KeyboardInterrupt):
            make_certificates(*command)
    before = (tmp_path / "server.pem").read_bytes() if kill > 4 else b""
    if kill == 2:
        with pytest.raises(ConfigError, match=r"of its CA there is ca.key alone; bring the other part"):
            make_certificates(*command)
        return
    server = ["localhost"] if kill < 5 else []
    made = make_certificates(server, ["anna"], tmp_path)
    assert made == [*([tmp_path / "server.pem"] if server else []), tmp_path / "anna"]
    for name in ("server", "anna/node"):
        certificate = read(tmp_path / f"{name}.pem")
        certificate.verify_directly_issued_by(read(tmp_path / "ca.pem"))
        key = load_pem_private_key((tmp_path / f"{name}.key").read_bytes(), None)
        assert certificate.public_key() == key.public_key()
    assert not before or (tmp_path / "server.pem").read_bytes() == before


def test_a_folder_of_other_files_is_no_node_s(tmp_path):
    make_certificates(["localhost"], [], tmp_path)
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna/notes.txt").write_text("")
    with pytest.raises(ConfigError, match="anna is there already"):
        make_certificates([], ["anna"], tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output .*file/tls: Not a directory; give a folder that can be written"):
        make_certificates(["localhost"], [], tmp_path / "file" / "tls")
