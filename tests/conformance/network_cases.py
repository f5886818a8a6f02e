"""Small networks of each kind, small images for them, and every algorithm in each way in which it uses a network."""

import dataclasses
import math
import typing

import torch
from exemptions import exempt
from federated_round import BINARY, MULTICLASS, Federation, make_parties
from test_algorithms import SMALL, all_algorithms
from torch import nn

from lit_fed.algorithms import DecentralizedSurrogate, FedProx, SurrogateOptimization
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.known_surrogates import IdentitySurrogate, MoreauSurrogate
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.models import Network
from lit_fed.wrappers.base import innermost

WAYS = {"local_solve", "option", "variant", "gradient", "averaging", "alpha_update", "exchange", "form"}
"""Fields of algorithms that say how a client uses its network; each value is a case of its own."""

SIZES = [5, 1, 3, 2]
UNSEEN = [3, 1]


def cases():
    """Every algorithm, by name, with its defaults and with each other value of a field in `WAYS`."""
    found = {}
    for cls in all_algorithms():
        small = SMALL.get(cls.__name__, {})
        found[cls.__name__] = cls(**small)
        types = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            for value in typing.get_args(types[field.name]) if field.name in WAYS else ():
                if value != field.default:
                    found[f"{cls.__name__} {value}"] = cls(**small | {field.name: value})
    found["FedProx inexactness"] = FedProx(inexactness=0.5)
    for cls in (SurrogateOptimization, DecentralizedSurrogate):
        for surrogate in (MoreauSurrogate(), IdentitySurrogate()):
            found[f"{cls.__name__} {type(surrogate).__name__}"] = cls(surrogate=surrogate)
    return found


CASES = cases()
LINEAR_ALONE = [name for name, one in CASES.items() if "mlp" in exempt(type(one))]
EXACT = [
    name for name, one in CASES.items()
    if getattr(one, "local_solve", "") == "exact" or isinstance(getattr(one, "surrogate", None), MoreauSurrogate)
]  # fmt: skip


class Normalised(Network):
    """A convolution with BatchNorm, and a parameter without axes."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, num_outputs)
        )
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.layers[-1](self.scale * self.layers[:-1](x))


class Dropped(Network):
    """A hidden layer with dropout."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, num_outputs)
        )

    def forward(self, x):
        return self.layers(x)


class Smooth(Network):
    """A hidden layer without kinks, so that rounding changes no gradient by much."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(input_shape), 4), nn.Tanh(), nn.Linear(4, num_outputs)
        )

    def forward(self, x):
        return self.layers(x)


class Unused(Network):
    """Parameters that no loss depends on."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.head, self.pooler = nn.Linear(16, num_outputs), nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.head(x.flatten(1))

    def split(self):
        return lambda x: x.flatten(1), self.head


def images(sizes=SIZES, side=4, dtype=torch.float64, first_id=0):
    """Clients with random images of one channel."""
    rng = torch.Generator().manual_seed(first_id)
    x = torch.randn(sum(sizes), 1, side, side, generator=rng, dtype=torch.float64).to(dtype)
    y = torch.randint(3, (sum(sizes),), generator=rng)
    return Split(x, y, torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()]), first_id)


def federation(algorithm, network, trainer, train=None, dtype=torch.float64, **options):
    """A federation on small images, or for an algorithm whose parties hold features on columns of them."""
    vertical = algorithm.participation.divided_by == "features"
    train = images(dtype=dtype) if train is None else train
    target = BINARY if "multiclass" in exempt(type(innermost(algorithm))) else MULTICLASS
    if target is BINARY:
        train = Split(train.x, train.y.clamp(max=1), train.offsets, train.first_id)
    if vertical:
        train = make_parties(Split(train.x.flatten(1), train.y, train.offsets))
    shape = tuple(train.x.shape[1:])
    task = Task.create(lambda: network(shape, target.num_outputs), target, dtype=dtype)
    defaults = {"solver": LocalSolver(lr=0.05, momentum=0.5), "num_rounds": 2}
    groups = torch.arange(train.num_clients) % 2
    return Federation(algorithm, train, task, trainer=trainer, groups=groups, **defaults | options)


def num_rounds(case):
    """Two rounds, in the second of which clients have a past; one where rounds take seconds, by Newton's method."""
    return 1 if case in EXACT else 2
