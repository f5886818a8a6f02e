"""PFLlib's image settings by its own programs: its files, its system, or its clients on given batches.

python pfllib_images.py generate CHECKOUT NAME EVERY PARTITION    into the working directory, of each EVERYth image
python pfllib_images.py system CHECKOUT ...                       main.py with these arguments
python pfllib_images.py batches CHECKOUT NAME GIVEN.npz ALGORITHM OUT.npz
                                                                  GIVEN: start, batches of each client, options
"""

# mypy: ignore-errors

from __future__ import annotations

import copy
import json
import runpy
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn


def generate(checkout: str, name: str, every: str, partition: str) -> None:
    """Their files of a data set, unbalanced and not IID."""
    import torchvision

    class Part(getattr(torchvision.datasets, name.upper())):
        """Each EVERYth image."""

        def __init__(self, root: str, **options: Any) -> None:
            super().__init__(root, **options)
            self.data, self.targets = self.data[:: int(every)], self.targets[:: int(every)]

    setattr(torchvision.datasets, name.upper(), Part)
    _run(Path(checkout) / "dataset", f"generate_{name}.py", ["noniid", "-", partition])


def system(checkout: str, *arguments: str) -> None:
    """Their training."""
    _run(Path(checkout) / "system", "main.py", arguments)


def _run(folder: Path, program: str, arguments: Sequence[str]) -> None:
    sys.path.insert(0, str(folder))
    sys.argv = [program, *arguments]
    runpy.run_path(str(folder / program), run_name="__main__")


class Batches:
    """The batches of a client; every pass over it takes the next of its plans."""

    def __init__(self, samples: list[tuple[torch.Tensor, torch.Tensor]], plans: list[list[list[int]]]) -> None:
        self.x, self.y = (torch.stack(part) for part in zip(*samples, strict=True))
        self.plans = iter(plans)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return ((self.x[rows], self.y[rows]) for rows in next(self.plans))

    def itself(self) -> Batches:
        """What stands for a DataLoader of every pass."""
        return self


def batches(checkout: str, name: str, given: str, algorithm: str, out: str) -> None:
    """Train from the given start on the given batches; keep the server's model and the clients' correct predictions."""
    sys.path.insert(0, str(Path(checkout) / "system"))
    from flcore.servers import serveravg, serverditto, serverlocal, serverper, serverprox, serverrep
    from flcore.trainmodel.models import DNN, BaseHeadSplit, FedAvgCNN
    from utils.data_utils import read_client_data

    servers = {"FedAvg": serveravg.FedAvg, "FedProx": serverprox.FedProx, "Local": serverlocal.Local}
    servers |= {"Ditto": serverditto.Ditto, "FedPer": serverper.FedPer, "FedRep": serverrep.FedRep}
    with np.load(given) as arrays:
        options = json.loads(str(arrays["options"]))
        start = [torch.from_numpy(arrays[name]) for name in arrays.files if name.startswith("start_")]
        plans = json.loads(str(arrays["plans"]))  # [client][pass][step][row]
    networks = {"CNN": lambda: FedAvgCNN(3, 10, 1600), "DNN": lambda: DNN(784, 100, 10)}
    model = networks[options.pop("network")]()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.copy_(value)
    if algorithm in ("FedAvg", "FedPer", "FedRep"):  # as main.py does
        head, model.fc = copy.deepcopy(model.fc), nn.Identity()
        model = BaseHeadSplit(model, head)
    server = servers[algorithm](Namespace(**_options(), **options, model=model, algorithm=algorithm, dataset=name), 0)
    for client, own in zip(server.clients, plans, strict=True):
        held = Batches(read_client_data(name, client.id), own)
        client.load_train_data = partial(Batches.itself, held)
    server.evaluate = server.evaluate_personalized = server.save_results = server.save_global_model = lambda: None
    server.rs_test_acc = server.rs_test_acc_per = [0.0]  # of what they print at the end
    server.train()
    if algorithm != "Local":
        server.send_models()
    personal = algorithm == "Ditto"
    tests = [one.test_metrics_personalized() if personal else one.test_metrics() for one in server.clients]
    hits, sizes = [test[0] for test in tests], [test[1] for test in tests]
    shared = [parameter.detach().numpy() for parameter in server.global_model.parameters()]
    np.savez(out, hits=hits, sizes=sizes, **{f"shared_{i}": leaf for i, leaf in enumerate(shared)})


def _options() -> dict:
    """The defaults of main.py that these servers and clients read."""
    return {
        "device": "cpu", "num_classes": 10, "num_clients": 20, "join_ratio": 1.0, "random_join_ratio": False,
        "few_shot": 0, "time_select": False, "goal": "", "time_threthold": 10000, "save_folder_name": "",
        "top_cnt": 100, "auto_break": False, "eval_gap": 1, "client_drop_rate": 0.0, "train_slow_rate": 0.0,
        "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2, "num_new_clients": 0,
        "fine_tuning_epoch_new": 0, "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99, "local_epochs": 1,
        "plocal_epochs": 1,
    }  # fmt: skip


if __name__ == "__main__":
    {"generate": generate, "system": system, "batches": batches}[sys.argv[1]](*sys.argv[2:])
