"""LightningModules as users bring them, and the plain loops that train them; nothing here knows lit_fed."""

import copy

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import Dataset


class LitClassifier(LightningModule):
    """Label smoothing and an auxiliary head; the loss of `training_step` is not that of its `forward`."""

    def __init__(self, width: int = 8, norm: str = "batch", lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        norms = {"batch": nn.BatchNorm1d(width), "group": nn.GroupNorm(2, width)}
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width), norms[norm], nn.ReLU())
        self.head, self.aux = nn.Linear(width, 10), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.body(x)
        loss = F.cross_entropy(self.head(features), y, label_smoothing=0.1)
        loss = loss + 0.3 * F.cross_entropy(self.aux(features), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        outputs = self(x)
        self.log("test_loss", F.cross_entropy(outputs, y))
        self.log("test_hits", (outputs.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.9)


class LitWithLosses(LitClassifier):
    """The same with losses of samples, from one pass of the batch."""

    def sample_losses(self, batch):
        x, y = batch
        features = self.body(x)
        loss = F.cross_entropy(self.head(features), y, label_smoothing=0.1, reduction="none")
        return loss + 0.3 * F.cross_entropy(self.aux(features), y, reduction="none")


class LitText(LightningModule):
    """Dicts with a mask and labels to ignore; two groups of an optimizer that warms up."""

    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.embedding, self.out = nn.Embedding(20, 6), nn.Linear(6, 5)

    def forward(self, ids, attention_mask):
        return self.out(self.embedding(ids) * attention_mask.unsqueeze(-1))

    def training_step(self, batch, batch_idx):
        logits = self(batch["ids"], batch["attention_mask"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        self.log_dict({"train_loss": loss, "perplexity": loss.exp()})
        return loss

    def configure_optimizers(self):
        groups = [
            {"params": self.embedding.parameters(), "weight_decay": 0.0},
            {"params": self.out.parameters(), "weight_decay": 0.1},
        ]
        return torch.optim.AdamW(groups, lr=self.hparams.lr)


class LitAutoEncoder(LightningModule):
    """Two losses, one of which grows with the epochs; `forward` gives the code, and labels are not read."""

    def __init__(self, lr: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 64))

    def forward(self, x):
        return self.encoder(x.flatten(1))

    def training_step(self, batch, batch_idx):
        x = batch[0].flatten(1)
        code = self(x)
        error = F.mse_loss(self.decoder(code), x)
        self.log("train/error", error)
        return error + 0.1 * min(1.0, self.current_epoch / 2) * code.square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)]


class LitSegmenter(LightningModule):
    """Masks [B, H, W], of which outputs are [B, K, H, W]; cross-entropy and Dice."""

    def __init__(self, num_classes: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.out = nn.Conv2d(1, num_classes, 3, padding=1)

    def forward(self, x):
        return self.out(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        outputs = self(x)
        wanted = F.one_hot(y, self.hparams.num_classes).movedim(-1, 1)
        both = (outputs.softmax(1) * wanted).flatten(1).sum(1)
        return F.cross_entropy(outputs, y) + (1 - both / wanted[0, 0].numel()).mean()

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("pixels_right", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


class Texts(Dataset):
    """Ragged token lists with a label for each token."""

    def __init__(self, number, seed):
        rng = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 7, (number,), generator=rng).tolist()
        self.samples = [torch.randint(1, 20, (length,), generator=rng) for length in lengths]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        ids = self.samples[index]
        return {"ids": ids, "labels": (3 * ids) % 5}


def padded(samples):
    """The `collate_fn` of `Texts`."""
    longest = max(len(one["ids"]) for one in samples)
    ids = torch.stack([F.pad(one["ids"], (0, longest - len(one["ids"]))) for one in samples])
    labels = [F.pad(one["labels"], (0, longest - len(one["labels"])), value=-100) for one in samples]
    return {"ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.stack(labels)}


class Epoch:
    """A trainer of which a module reads the epoch alone."""

    def __init__(self, epoch):
        self.current_epoch = epoch


def loss_of(module, batch, epoch=0):
    """The loss of `training_step`, which may log and read the epoch."""
    module._trainer, module.log = Epoch(epoch), lambda *_, **__: None
    try:
        return module.training_step(batch, 0)
    finally:
        module._trainer = None
        del module.log


def trained(module, batches, epoch=0, lr=None, loss=loss_of):
    """A copy of a module after a step on each batch by a new optimizer of its own, at its rate or another one."""
    module = copy.deepcopy(module).train()
    found = module.configure_optimizers()
    optimizer = found[0][0] if isinstance(found, tuple) else found
    for group in optimizer.param_groups if lr is not None else ():
        group["lr"] = lr
    for batch in batches:
        optimizer.zero_grad()
        loss(module, batch, epoch).backward()
        optimizer.step()
    return module


def mean_of(modules, weights):
    """A copy of the first module with the weighted mean of all leaves."""
    mean, total = copy.deepcopy(modules[0]), sum(weights)
    states = [one.state_dict() for one in modules]
    mean.load_state_dict({
        name: sum(w * one[name].double() for w, one in zip(weights, states, strict=True)).div(total).to(leaf)
        for name, leaf in states[0].items()
    })  # fmt: skip
    return mean
