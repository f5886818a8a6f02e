"""Environments of engines that the tests' own environment lacks."""

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest


def programs_with(package: str, requirement: str, folder: Path) -> Path:
    """The folder of programs of an environment that has a package.

    It is this environment if it has the package, else a new one in `folder`, which sees the packages of this one.
    """
    if importlib.util.find_spec(package):
        return Path(sys.executable).parent
    venv.create(folder)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "these.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    install = [folder / "bin" / "python", "-m", "pip", "install", requirement]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin"
