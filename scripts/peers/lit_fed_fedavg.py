"""FedAvg by lit_fed's command line, with its folder of a run, its checkpoints and its log."""

import sys

import numpy as np

from lit_fed.command_line.light_start import light_start

file, workload, rounds, lr, batch_size = sys.argv[1:6]
with light_start():  # as every command does
    import torch
    from torch import nn

    from lit_fed.cli import FederatedCLI

command = FederatedCLI([
    "fit", "--data.dataset", "lit_fed_workload.Held", "--data.dataset.file", file, "--data.batch_size",
    str(int(float(batch_size))), "--data.test_fraction", "0", "--model.network", f"lit_fed_workload.{workload}",
    "--model.algorithm", "FedAvg", "--model.solver.lr", lr, "--model.solver.local_epochs", "1",
    "--model.solver.schedule", "constant", "--trainer.max_epochs", str(int(float(rounds))),
    "--trainer.accelerator", "cpu", "--trainer.limit_val_batches", "0",
    "--trainer.enable_progress_bar", "false",
])  # fmt: skip

with torch.no_grad(), np.load(file) as data:
    module = command.model
    outputs = module.federation.terms.task.outputs(module.shared.models, torch.from_numpy(data["x"]))
    print(float(nn.functional.cross_entropy(outputs[:, 0], torch.from_numpy(data["y"]))))
