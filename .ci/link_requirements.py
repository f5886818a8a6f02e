"""Give an environment what its wheel declares, and what that needs in turn: files of this environment, not downloads.

    python .ci/link_requirements.py ENVIRONMENT [REQUIREMENT...]

It then holds what pip would have installed beside the wheel and the given requirements, and nothing else.
"""

import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement


def needed(requirements: Iterable[str], extras: Iterable[str] = ("",)) -> list[Requirement]:
    """The requirements that hold here, with the extras that were asked for."""
    found = [Requirement(one) for one in requirements]
    return [
        one for one in found if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def closure(requirements: list[Requirement]) -> dict[str, Distribution]:
    """All distributions that these need, directly or not."""
    found, seen = {}, set()
    while requirements:
        one = requirements.pop()
        key = (one.name.lower().replace("_", "-"), *sorted(one.extras))
        if key not in seen:
            seen.add(key)
            found[key[0]] = distribution(one.name)
            requirements += needed(found[key[0]].requires or (), one.extras or ("",))
    return found


def link(one: Distribution, site: Path) -> None:
    """Link the files of a distribution, except for its programs, and what Python keeps of its modules, compiled."""
    for file in one.files or ():
        compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
        for each in (file, compiled) if file.suffix == ".py" else (file,):
            if ".." not in each.parts:
                link_file(Path(str(one.locate_file(each))), site / each)


def link_file(source: Path, target: Path) -> None:
    """Link a file, if it is there and the other is not."""
    if source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)


if __name__ == "__main__":
    (site,) = Path(sys.argv[1]).glob("lib/python*/site-packages")
    (wheel,) = (one for one in distributions(path=[str(site)]) if one.name == "lit-fed")
    for each in closure(needed((*(wheel.requires or ()), *sys.argv[2:]))).values():
        link(each, site)
