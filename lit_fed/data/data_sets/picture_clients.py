"""Clients that come after the training, as folders of pictures.

FOLDER/<client>/<class>/*.png     what the client adapts on
FOLDER/<client>/*.png             what is to be predicted; there need be none
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.data.data_sets.client_folder import ClientArrays
from lit_fed.data.data_sets.image_folder import decoded, pictures_in, visible_entries

__all__ = ["read_picture_clients"]


def read_picture_clients(
    root: Path, input_shape: tuple[int, ...], class_names: tuple[str, ...] | None
) -> list[ClientArrays]:
    """Clients by folders of pictures, read as `ImageFolder` reads them; [] if there is no folder.

    Args:
        root: folder with a folder for each client.
        input_shape: of the inputs of the training.
        class_names: of the training's classes, by number; None where they have no names.

    Returns:
        For each client x_train [n, channels, height, width] uint8, y_train [n] and, where there are pictures beside the
        folders of classes, x_test in the order of their names.

    Raises:
        ConfigError: if the training was not on pictures with named classes, or naming the folder or file that does not
            fit.
    """
    clients = [entry for entry in visible_entries(root) if entry.is_dir()]
    if not clients:
        return []
    pictures = len(input_shape) == 3 and input_shape[0] in (1, 3) and input_shape[1] == input_shape[2]
    require(
        pictures and class_names is not None,
        f"--clients {root}: has folders, which are read as clients with pictures; the checkpoint was trained on inputs "
        f"of shape {list(input_shape)}{'' if class_names else ' and classes without names'}: pass a folder with a .npz "
        "file for each unseen client",
    )
    return [_client(folder, input_shape[0], input_shape[1], class_names or ()) for folder in clients]


def _client(folder: Path, channels: int, image_size: int, class_names: tuple[str, ...]) -> ClientArrays:
    entries = visible_entries(folder)
    labelled: list[tuple[Path, int]] = []
    for entry in entries:
        if entry.is_dir():
            require(
                entry.name in class_names,
                f"{entry}: no class of the checkpoint, which knows {', '.join(class_names)}; rename the folder, or "
                "remove it",
            )
            labelled += [(path, class_names.index(entry.name)) for path in pictures_in(entry)]
    require(
        bool(labelled),
        f"{folder}: no picture of a known class to adapt on; add some as {folder.name}/{class_names[0]}/*.png",
    )
    unlabelled = pictures_in(folder, beside_classes=True)
    paths = [path for path, _ in labelled]
    arrays = {
        "x_train": np.stack(list(decoded(paths, image_size, channels))),
        "y_train": np.array([label for _, label in labelled], dtype=np.int64),
    }
    if unlabelled:
        arrays["x_test"] = np.stack(list(decoded(unlabelled, image_size, channels)))
    return ClientArrays(folder.name, arrays, dict.fromkeys(("train", "val", "test"), str(folder)))
