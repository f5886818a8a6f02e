"""What is measured on a finished run besides its summary, and the callbacks that some of it takes.

A measure is called with the objects of the command line and the folder of the run.
"""

import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks.component_accuracy import component_scores, has_components
from lit_fed.callbacks.evaluation import measured_table
from lit_fed.clients import PredictJob, SequentialTrainer
from lit_fed.core.mixtures.e_step import expectation
from lit_fed.core.seeds import generator
from lit_fed.core.types import Split
from lit_fed.data.data_sets.synthetic import synthetic_parameters
from lit_fed.metrics import summarise
from lit_fed.training.hooks import data_of, federated

Kind = TypeVar("Kind", bound=Callback)


def client_weights(cli: Any, folder: Path) -> dict[str, Any]:
    """What `weights.npz` holds, rounded to three digits."""
    with np.load(folder / "weights.npz") as kept:
        return {name: np.round(kept[name].astype(float), 3).tolist() for name in kept.files}


def data_statistics(cli: Any, folder: Path) -> dict[str, Any]:
    """Clients, samples of each client in all splits, classes, and parameters of one network."""
    data = cli.datamodule
    both = [one for one in (data.seen, data.unseen) if one is not None]
    sizes = [(one.train.sizes + one.val.sizes + one.test.sizes).tolist() for one in both]
    network = cli.model.settings.network(data.input_shape, data.target.num_outputs)
    return {
        "samples": [size for some in sizes for size in some],
        "training_samples": sum(one.train.num_samples for one in both),
        "classes": data.target.num_classes,
        "parameters": sum(leaf.numel() for leaf in network.parameters()),
    }


def participation(cli: Any, folder: Path) -> dict[str, float]:
    """Clients of the training, and how many of them take part in a round on average."""
    data = cli.datamodule
    clients = data.seen.train.num_clients
    return {"clients": clients, "per_round": data.clients_per_round or clients}


class RoundClock(Callback):
    """CPU seconds of each round, without its evaluation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A round begins."""
        self.started = time.process_time()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A round ends with its last batch."""
        if batch.ends_round:
            self.seconds.append(time.process_time() - self.started)


def callback(cli: Any, kind: type[Kind]) -> Kind:
    """The callback of a run that took a measure under way."""
    (found,) = (one for one in cli.trainer.callbacks if isinstance(one, kind))
    return found


def cpu_seconds_per_round(cli: Any, folder: Path) -> float:
    """The mean of what `RoundClock` measured."""
    return statistics.mean(callback(cli, RoundClock).seconds)


# ---------------------------------------------------------------------- mixtures
SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def accuracy_by_share(cli: Any, folder: Path) -> dict[str, list[float]]:
    """Test accuracy of unseen clients that adapt on a share of their training samples, each holding the one before."""
    data, device = cli.datamodule, cli.trainer.strategy.root_device
    whole, results = data.unseen, []
    cli.model.to(device)  # which the end of the run has brought home
    for share in SHARES:
        data.unseen = whole._replace(train=first_samples(whole.train, share, data.seed))
        with torch.inference_mode():
            scores = measured_table(cli.trainer, cli.model, "unseen", "test").scores()
        results.append(summarise(scores)["accuracy"])
    data.unseen = whole
    return {"shares": list(SHARES), "accuracy": results}


def first_samples(split: Split, share: float, seed: int) -> Split:
    """The first part of each client's shuffled samples, rounded up."""
    rows = []
    for position, (start, end) in enumerate(pairwise(split.offsets.tolist())):
        order = generator(seed, 0, split.first_id + position, "share of the training samples").permutation(end - start)
        rows.append(start + order[: math.ceil(share * (end - start))])
    offsets = torch.tensor([0, *np.cumsum([len(some) for some in rows]).tolist()])
    taken = torch.from_numpy(np.concatenate(rows))
    return Split(split.x[taken], split.y[taken], offsets, split.first_id)


def mixture_entropy(cli: Any, folder: Path) -> dict[str, float]:
    """Mean entropy in nats of the mixture weights that clients were served with, of seen and of unseen ones."""
    import pandas as pd

    table = pd.read_csv(folder / "clients.csv")
    weights = table[[name for name in table if name.startswith("pi_")]].to_numpy().clip(min=1e-300)
    entropy = -(weights * np.log(weights)).sum(axis=1)
    return {name: float(entropy[table["population"] == name].mean()) for name in table["population"].unique()}


def recovery(cli: Any, folder: Path) -> dict[str, Any]:
    """How near the components and mixtures of a run come to those that drew the synthetic data.

    Components are matched one to one by the largest sum of cosines. A component is known up to its length, since its
    labels say only on which side of a plane a sample lies.
    """
    from scipy.optimize import linear_sum_assignment

    truth = synthetic_parameters(cli.datamodule.dataset)
    learned = cli.model.shared.models.parameters["linear.weight"].double().cpu().numpy()[:, 0]
    cosine = _directions(truth.components) @ _directions(learned).T
    true, found = linear_sum_assignment(cosine, maximize=True)
    mixtures = cli.model.mixture_weights.double().cpu().numpy()[:, found]
    wanted = truth.mixtures[:, true]
    return {
        "cosines": np.round(cosine[true, found], 4).tolist(),
        "mixture_l1": float(np.abs(mixtures - wanted).sum(axis=1).mean()),
        "clusters": float((mixtures.argmax(axis=1) == wanted.argmax(axis=1)).mean()),
    }


def _directions(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class MixtureCurve(Callback):
    """Measures the seen clients' mixtures in every periodic evaluation.

    Attributes:
        rows: for each evaluation the round, the mean entropy of π over clients and of q over training samples, both in
            nats, the weight of the largest component on average, the accuracy of each component alone [M], by how much
            of its norm it moved since the last evaluation [M], and, where true groups are known, their mean π [G, M].
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._before: Tensor | None = None  # the components at the last evaluation, [M, P]

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far, for a run that is cut short."""
        return {"rows": self.rows, "before": self._before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with it."""
        self.rows, self._before = list(state_dict["rows"]), state_dict["before"]

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, unless Lightning only tries out whether it can."""
        module = federated(pl_module)
        if trainer.sanity_checking or not has_components(module):
            return
        data, federation = data_of(trainer), module.federation
        train = data.populations[0].train.to(module.device)
        mixture = module.store.gather(torch.arange(train.num_clients, device=module.device))["state"].mixture
        with trainer.precision_plugin.val_step_context(), torch.no_grad():
            ctx, entropies = federation.context("evaluate"), []
            for client_id, pi in enumerate(mixture):
                client = train.client(client_id)
                losses = SequentialTrainer().losses(ctx, federation.shared, federation.algorithm, client)
                assert losses is not None  # of a mixture they are known
                entropies.append(_entropy(expectation(pi, losses, client.mask)[1]))
            scores = component_scores(trainer, module)
        means = {"clients": _entropy(mixture), "samples": torch.cat(entropies)}
        row = {f"entropy_of_{name}": _digits(values.mean()) for name, values in means.items()}
        row |= {"round": module.num_rounds_done, "largest_weight": _digits(mixture.amax(1).mean())}
        row["components"] = [_digits(one.hits.sum() / one.samples.sum()) for one in scores]
        leaves = federation.shared.models.parameters.values()
        now = torch.cat([leaf.flatten(1).double().cpu() for leaf in leaves], 1)
        if self._before is not None:
            row["moved"] = [_digits(value) for value in (now - self._before).norm(dim=1) / now.norm(dim=1)]
        self._before = now
        if (groups := data.populations[0].groups) is not None:
            row["by_group"] = [[_digits(value) for value in mixture[groups == one].mean(0)] for one in groups.unique()]
        self.rows.append(row)


def _entropy(weights: Tensor) -> Tensor:
    """Entropies [n] in nats of rows [n, M] that sum to 1."""
    return torch.special.entr(weights).sum(1)


def _digits(value: Tensor) -> float:
    return round(float(value), 4)


def mixture_curve(cli: Any, folder: Path) -> list[dict[str, Any]]:
    """What `MixtureCurve` measured."""
    return callback(cli, MixtureCurve).rows


# ---------------------------------------------------------------------- single clients
class ClientAccuracies(Callback):
    """Keeps the accuracy of the seen clients of every evaluated round: `rounds` [R] and `accuracies` [R, E]."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.accuracies: list[list[float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the shares of hits, once all callbacks measured the round."""
        module: Any = pl_module
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            scores = module.client_scores["seen"]
            self.rounds.append(module.num_rounds_done)
            self.accuracies.append((scores.hits / scores.samples.clamp(min=1)).tolist())


def client_accuracies(cli: Any, folder: Path) -> dict[str, Any]:
    """What the callback kept, rounded to four digits."""
    kept = callback(cli, ClientAccuracies)
    return {"rounds": kept.rounds, "accuracies": [[round(value, 4) for value in row] for row in kept.accuracies]}


POINTS = 20  # points of each client's line


def sine_lines(cli: Any, folder: Path) -> dict[str, Any]:
    """The line of each client [T, POINTS] with the curve there, its training points, and the mean squared distance."""
    module, data = cli.model, cli.datamodule.dataset
    ends = np.array([data.interval(one) for one in range(data.num_clients)])
    x = np.linspace(ends[:, 0], ends[:, 1], POINTS, axis=1)
    lines, curve, train = _predict(module, x), data.curve(x), data.load()[0].train
    arrays = {"x": x, "lines": lines, "curve": curve, "train_x": train.x.numpy()[:, 0], "train_y": train.y.numpy()}
    rounded = {name: np.round(values.astype(float), 4).tolist() for name, values in arrays.items()}
    return {**rounded, "error": float(np.square(lines - curve).mean())}


def _predict(module: Any, x: np.ndarray) -> np.ndarray:
    """What each client predicts for its row of inputs [T, POINTS]."""
    ids, ctx = torch.arange(len(x)), module.federation.context("evaluate")
    inputs = torch.tensor(x, dtype=torch.float32).reshape(-1, 1)
    split = Split(inputs, torch.zeros(x.size), torch.arange(len(x) + 1) * POINTS)
    states, lines = module.store.gather(ids)["state"], np.zeros_like(x)
    job = PredictJob(module.algorithm, ctx, module.shared, split, ids, states)
    for served in module.federation.client_trainer.predict(job):
        lines[served.rows.numpy()] = served.prediction[..., 0].numpy()
    return lines


MEASURES: dict[str, Callable[[Any, Path], Any]] = {
    one.__name__: one for one in (
        accuracy_by_share, client_accuracies, client_weights, cpu_seconds_per_round, data_statistics, mixture_curve,
        mixture_entropy, participation, recovery, sine_lines,
    )
}  # fmt: skip
