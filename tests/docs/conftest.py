"""The documentation, built once for all tests of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(shared_folder):
    """Folder of the built documentation; several processes of pytest share one build."""
    folder, log = shared_folder / "site", shared_folder / "site.log"
    with FileLock(shared_folder / "site.lock"):
        if not log.exists():
            log.write_text(build(folder))
    return folder, log.read_text()


def build(folder):
    """What mkdocs and Python say of the build; nothing is silenced but the notice of mkdocs-material."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    return f"{done.stdout}{done.stderr}exit status {done.returncode}\n"
