"""What a release names in several places is the same in all of them."""

import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("README.md", r"version = \{(.+)\}"),
        ("docs/index.md", r"version = \{(.+)\}"),
        ("CHANGELOG.md", r"\n## \[(.+?)\]"),
        ("CITATION.cff", r"\nversion: (.+)"),
    ],
)
def test_the_version_is_that_of_the_package(page, pattern):
    assert re.search(pattern, (ROOT / page).read_text(encoding="utf-8"))[1] == PROJECT["version"]


def test_links_of_the_readme_lead_somewhere_on_a_package_index(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    build = importlib.import_module("hatch_build")
    metadata = {"urls": PROJECT["urls"]}
    build.Readme(str(ROOT), {}).update(metadata)
    links = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    assert len(links) > 50
    assert [one for one in links if not one.startswith(("https://", "#"))] == []
    urls = {"Repository": "R", "Documentation": "D"}
    for path, address in {
        "docs/guides/wandb.md": "D/guides/wandb/",
        "docs/results/README.md": "D/results/",
        "docs/index.md": "D/",
        "docs/notebooks/own_frame.ipynb": "D/notebooks/own_frame/",
        "docs/assets/fedem.svg": "D/assets/fedem.svg",
        "LICENSE": "R/blob/HEAD/LICENSE",
    }.items():
        assert build.address(path, urls) == address
        assert (ROOT / path).is_file()


def test_readme_and_citation_name_the_same_paper_and_software():
    titles = re.findall(r"\n  title +=\s+\{(.+)\}", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert titles == [CITATION["references"][0]["title"], CITATION["title"]]
    assert CITATION["license"] == PROJECT["license"]


def test_addresses_stand_in_one_place():
    """The owner fills them in once; every other file names `[project.urls]`."""
    assert {"Repository", "Issues", "Security"} <= PROJECT["urls"].keys()
    own = {url for name, url in PROJECT["urls"].items() if name != "Paper"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no git")
    texts = {one: (ROOT / one).read_bytes().decode(errors="ignore") for one in listed if (ROOT / one).is_file()}
    assert [one for one, text in texts.items() if any(url in text for url in own)] == ["pyproject.toml"]


def test_images_and_forges_take_a_python_that_is_claimed():
    files = (".github/workflows/ci.yml", ".gitlab-ci.yml", "Dockerfile")
    versions = re.compile(r"python:(\d\.\d+)|python-version: \"(.+)\"")
    for file in files:
        found = {one or other for one, other in versions.findall((ROOT / file).read_text(encoding="utf-8"))}
        assert found, file
        assert {f"Programming Language :: Python :: {one}" for one in found} <= set(PROJECT["classifiers"])


def test_the_image_is_built_of_all_that_the_wheel_takes():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*build["packages"], *build["force-include"], *PROJECT["license-files"], "hatch_build.py", "README.md"}
    assert needed <= {path for paths in copied for path in paths.split()}


def test_forges_run_what_has_to_pass_and_keep_what_it_made():
    job = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text(encoding="utf-8"))["run"]
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["run"]["steps"]
    assert job["script"] in [one.get("run") for one in steps]
    assert (ROOT / job["script"]).stat().st_mode & 0o100
    assert (
        job["artifacts"]["paths"]
        == ["dist/"]
        == [one["with"]["path"] for one in steps if "path" in one.get("with", ())]
    )


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_a_form_has_what_the_forge_asks_for(form):
    read = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= read.keys()
    fields = [one for one in read["body"] if one["type"] != "markdown"]
    assert len({one["id"] for one in fields}) == len(fields) > 0
    assert all(one["attributes"]["label"] for one in fields)
