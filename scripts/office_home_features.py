"""Makes the features that the data set OfficeHome reads: ROOT/OfficeHome/features.npz.

    python scripts/office_home_features.py ROOT                   # torchvision fetches the weights
    python scripts/office_home_features.py ROOT --weights FILE    # a state dict of its ResNet-18, without a network

ROOT/OfficeHome holds the folders of the official archive: {Art,Clipart,Product,Real World}/<class>/*.jpg. The features
are what the penultimate layer of a ResNet-18 trained on ImageNet makes of them, https://arxiv.org/abs/2210.06597,
Appendix D. The checksum tells whether two people started from the same files; it does not cover what they show.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import nn
from torchvision.models import ResNet, ResNet18_Weights, resnet18

from lit_fed.data.data_sets.office_home import DOMAINS, FEATURES, FOLDER, NUM_CLASSES
from lit_fed.errors import ConfigError
from lit_fed.models.pretrained import load_weights
from lit_fed.system.files import whole_file

BATCH = 64


class Pictures(NamedTuple):
    """The pictures of a folder, by domain, class and name."""

    paths: list[Path]
    y: np.ndarray  # [n] int64
    domain: np.ndarray  # [n] int64
    class_names: list[str]


def find(folder: Path) -> Pictures:
    """All pictures below the four domains; the classes are the names of the folders, sorted.

    Raises:
        ConfigError: naming the domain that is missing, or if there are not 65 classes.
    """
    for name in DOMAINS:
        if not (folder / name).is_dir():
            raise ConfigError(f"{folder / name}: no such folder; unpack the official archive into {folder}")
    class_names = sorted({path.name for name in DOMAINS for path in (folder / name).iterdir() if path.is_dir()})
    if len(class_names) != NUM_CLASSES:
        found = f"{len(class_names)} classes, Office-Home has {NUM_CLASSES}"
        raise ConfigError(f"{folder}: {found}; unpack the official archive anew")
    paths = [path for name in DOMAINS for path in sorted((folder / name).glob("*/*.jpg"))]
    if not paths:
        raise ConfigError(f"{folder}: no picture *.jpg in the folders of the classes; unpack the official archive anew")
    y = np.array([class_names.index(path.parent.name) for path in paths])
    return Pictures(paths, y, np.array([DOMAINS.index(path.parts[-3]) for path in paths]), class_names)


def checksum(folder: Path, paths: Sequence[Path]) -> str:
    """SHA-256 over lines of relative file names and sizes, sorted by name."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    lines = "".join(f"{name}\t{size}\n" for name, size in sorted(sizes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def trained(weights: str) -> ResNet:
    """The ResNet-18 of torchvision up to its penultimate layer, by the name of its weights or a state dict's path."""
    network = resnet18()
    try:
        load_weights(network, weights, ResNet18_Weights, "fc.")
    except ConfigError as error:  # it speaks of the command line of a run
        raise ConfigError(str(error).replace("--model.network.weights", "--weights")) from error
    network.fc = nn.Identity()
    network.eval()
    return network


def extract(paths: Sequence[Path], network: ResNet) -> np.ndarray:
    """What the network makes of each picture [n, 512], after torchvision's own preparation of pictures."""
    prepare = ResNet18_Weights.IMAGENET1K_V1.transforms()
    rows = []
    with torch.inference_mode():
        for start in track(range(0, len(paths), BATCH), "features"):
            pictures = [prepare(_read(path)) for path in paths[start : start + BATCH]]
            rows.append(network(torch.stack(pictures)).numpy())
    return np.concatenate(rows)


def _read(path: Path) -> Image.Image:
    """One picture in colour."""
    try:
        with Image.open(path, formats=["JPEG", "PNG"]) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as a picture ({error}); unpack it anew") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Find the pictures, extract their features and write the file."""
    parser = argparse.ArgumentParser(description="Makes ROOT/OfficeHome/features.npz.")
    parser.add_argument("root", type=Path, help="folder that holds OfficeHome")
    parser.add_argument("--weights", default="IMAGENET1K_V1", help="of torchvision, or a file (.pt, .pth)")
    options = parser.parse_args(arguments)
    folder = options.root.expanduser() / FOLDER
    try:
        found = find(folder)
        digest = checksum(folder, found.paths)
        x = extract(found.paths, trained(options.weights))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    names = {"class_names": found.class_names, "domain_names": DOMAINS}
    with whole_file(options.root.expanduser() / FEATURES) as file:
        np.savez(file, x=x, y=found.y, domain=found.domain, **names, checksum=digest)
    print(f"{len(x)} pictures of {len(found.class_names)} classes; SHA-256 of names and sizes: {digest}")


if __name__ == "__main__":
    main()
