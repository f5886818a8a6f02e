"""FedEM as a textbook would write it, the yardstick of bench.py: one client, one component, one batch after another.

Every client has a `DataLoader(TensorDataset)`, takes an E-step pass, and trains each component in a pass of its own
with torch's SGD; the server averages state dicts.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lit_fed.core.types import Split

Batches = Callable[[tuple[Tensor, ...], int, bool], Iterator[tuple[Tensor, ...]]]


def loader_batches(arrays: tuple[Tensor, ...], batch_size: int, shuffle: bool) -> Iterator[tuple[Tensor, ...]]:
    """Batches as a textbook makes them."""
    return iter(DataLoader(TensorDataset(*arrays), batch_size=batch_size, shuffle=shuffle))


def index_batches(arrays: tuple[Tensor, ...], batch_size: int, shuffle: bool) -> Iterator[tuple[Tensor, ...]]:
    """Batches of tensors by index."""
    total = len(arrays[0])
    order = torch.randperm(total) if shuffle else torch.arange(total)
    for lo in range(0, total, batch_size):
        yield tuple(array[order[lo : lo + batch_size]] for array in arrays)


class Textbook:
    """FedEM."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        data: Split,
        *,
        batch_size: int = 128,
        batches: Batches = loader_batches,
        num_components: int = 3,
        sgd: dict[str, float] | None = None,
        keep_momentum: bool = False,
    ) -> None:
        self.data, self.batch_size, self.batches = data, batch_size, batches
        self.sgd = {"lr": 0.1} | (sgd or {})
        self.components = [build() for _ in range(num_components)]
        self.local = [build() for _ in range(num_components)]
        self.keep_momentum = keep_momentum
        self.momentum: dict[tuple[int, int], list[Tensor]] = {}
        self.mixture = torch.full((data.num_clients, num_components), 1 / num_components)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample, [B]: one logit, C logits or C logits at each position."""
        if outputs.shape[-1] == 1:
            return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")
        each = nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        return each.view(len(y), -1).mean(1)

    def e_step(self, client_id: int, x: Tensor, y: Tensor) -> Tensor:
        """Responsibilities [n, M] of one client; its mixture weights are updated."""
        for model in self.components:
            model.eval()
        with torch.no_grad():
            parts = [
                torch.stack([self.losses(model(some_x), some_y) for model in self.components], 1)
                for some_x, some_y in self.batches((x, y), self.batch_size, False)
            ]
        q = torch.softmax(self.mixture[client_id].log() - torch.cat(parts), 1)
        self.mixture[client_id] = q.mean(0)
        return q

    def round(self) -> None:
        """One round over all clients."""
        sums = [{name: torch.zeros_like(leaf) for name, leaf in one.state_dict().items()} for one in self.components]
        total = len(self.data.y)
        for client_id in range(self.data.num_clients):
            client = self.data.client(client_id)
            q = self.e_step(client_id, client.x, client.y)
            for m, model in enumerate(self.local):
                model.load_state_dict(self.components[m].state_dict())
                model.train()
                optimizer = torch.optim.SGD(model.parameters(), **self.sgd)
                for leaf, kept in zip(model.parameters(), self.momentum.get((client_id, m), ()), strict=False):
                    optimizer.state[leaf]["momentum_buffer"] = kept
                arrays = (client.x, client.y, q[:, m])
                for x, y, weight in self.batches(arrays, self.batch_size, True):
                    loss = (self.losses(model(x), y) * weight).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                if self.keep_momentum:
                    buffers = [optimizer.state[leaf]["momentum_buffer"] for leaf in model.parameters()]
                    self.momentum[client_id, m] = buffers
                for name, leaf in model.state_dict().items():
                    if leaf.is_floating_point():
                        sums[m][name].add_(leaf, alpha=len(client.y) / total)
        for model, averaged in zip(self.components, sums, strict=True):
            model.load_state_dict(averaged)

    def evaluate(self, clients: int) -> float:
        """Hits over the samples of the first clients."""
        hits = 0.0
        with torch.no_grad():
            for client_id in range(clients):
                client = self.data.client(client_id)
                for x, y in self.batches((client.x, client.y), self.batch_size, False):
                    parts = torch.stack([torch.sigmoid(model(x)[:, 0]) for model in self.components], 1)
                    hits += float(((parts @ self.mixture[client_id] > 0.5) == (y > 0.5)).sum())
        return hits
