"""When a mixture of models helps: what the records of several tables say together."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.fedem_images import CIFAR10, RATES, at, image_settings, smoke_of
from reproduction.mixture_grid import grid_lines, grid_picture, grid_runs
from reproduction.mixture_number import number_lines, number_runs, start_lines, start_runs, step_lines
from reproduction.runs import Kept, Run
from reproduction.settings import LABELS, fedem_settings
from reproduction.tables import Scale, Setting, Table, cell, grid, mean, wrap

__all__ = ["TABLES"]

COMPARED = ("local", "fedavg", "fedavg_plus", "fedem")
ROUNDS = ("--data.dataset.fraction", "0.3", "--trainer.max_epochs", "100")


def permuted(scale: Scale) -> Setting:
    """Three groups of clients that call the classes of CIFAR-10 by other names."""
    rates = RATES["images_cifar10"] | {"fedem": 0.1}  # the schedule falls after 50 rounds, before it diverges
    more = ("--data.partition", "LabelPermutations", "--data.partition.num_groups", "3")
    methods = tuple(at(name, rates[name], common=rates["fedavg"]) for name in COMPARED)
    smoke = smoke_of("images_cifar10") if scale == "smoke" else ROUNDS
    often = ("--trainer.check_val_every_n_epoch", "20")
    arguments = (*CIFAR10.arguments, *often, *more, *smoke)
    return CIFAR10._replace(name="when_permuted_0.3", methods=methods, arguments=arguments)


def when_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of this page's own; the others are those of other pages."""
    return [*permuted(scale).runs(seeds), *grid_runs(scale, seeds), *number_runs(scale, seeds), *start_runs(scale)]


def situations(scale: Scale) -> list[tuple[str, str, str, str, Setting, tuple[int, ...]]]:
    """What clients differ in, clients that train, training samples of each, rounds and who takes part."""
    if scale != "reduced":
        return [("labels permuted", "4", "few", "2, all", permuted(scale), (1,))]
    tables, images, three = fedem_settings(scale), image_settings(scale), (1, 2, 3)
    return [
        ("what a label means: CIFAR-10, three groups", "80", "144", "100, all", permuted(scale), (1,)),
        (
            "what a label means: synthetic, three rules mixed",
            "300",
            "50 to 1000",
            "200, all",
            tables["synthetic"],
            three,
        ),
        ("which labels, in three groups: CIFAR-10", "80", "480", "200, all", images["images_cifar10"], (1,)),
        ("which labels, in three groups: CIFAR-10, LeNet5", "80", "480", "200, all", images["images_lenet5"], (1,)),
        ("how they write: Shakespeare's roles", "20", "thousands", "30, all", tables["shakespeare_roles"], three),
        ("which labels, in three groups: MNIST", "100", "56", "200, all", images["images_mnist"], (1,)),
        ("how they write: MNIST's writers", "669", "67", "200, all", images["images_writers"], (1,)),
        ("how they write: MNIST's writers", "669", "67", "40, 100 of 669", tables["mnist_by_writer"], three),
        ("which labels, one by one: CIFAR-10", "16", "600", "40, all", tables["cifar10_dirichlet"], three),
        ("which labels, one by one: CIFAR-100", "16", "600", "40, all", tables["cifar100_pachinko"], (1,)),
    ]


ADVICE = (
    "**Clients contradict each other**: the same input has another label for other clients. No single model can be "
    "right, fine-tuning starts from a muddle, and alone nobody has enough. Take FedEM. It needs no knowledge of the "
    "groups, only about as many components as there are rules, and rounds enough: here it was level with the rest "
    "after 20 rounds and twice as good after 60. Thirty samples of a client were enough where each followed one rule.",
    "**Clients mix the same rules in nearly the same way**: FedAvg or FedAvg+, below some hundred samples of a client. "
    "A mixture then has three times the parameters to learn from the same samples, and leads from where these suffice.",
    "**Clients hold different classes, a few hundred samples each, and all take part for a hundred rounds and more**: "
    "FedEM is ahead of FedAvg, by three points with a wide network and by six with a small one, and by more on clients "
    "that it never saw, which take one E-step. The mixture overfits less than one model of the same size "
    "does. Compare with FedAvg+, which is cheaper by the number of components, needs steps of each client before it is "
    "served, and was level with FedEM with the small network, 63.6 against 62.7 and on unseen clients 65.9 against "
    "65.4, and ahead of it with the wide one but for unseen clients, 73.1 against 70.5 and 70.7 against 70.4.",
    "**Clients hold different classes of one simple task and some dozens of samples**: FedAvg, then FedAvg+. "
    "Components part for good within some dozens of rounds, each client ends with one of them, and what this one "
    "learnt from is a part of a pool that was small already; the worst clients lose most.",
    "**Clients differ in style alone**, as writers do: FedAvg+ with a small rate. There is one task, and a mixture "
    "divides it: after 40 rounds with 100 of 669 writers in each FedEM is 7 points behind FedAvg. With all of them in "
    "each of 200 rounds it catches up, 97.1 against 97.4, but as a single model at three times the cost: a client's "
    "largest weight is then 0.99 on average. FedAvg+ has 98.1.",
    "**Few clients, few labels each, many samples, few rounds**: Local. Knowing which labels there are is worth more "
    "than what the others know.",
    "**How many components**: as many as there are rules, or a few more. One too few costs 6 to 15 points where each "
    "client follows one of three rules; seven too many cost clients of the training at most one point from three "
    "hundred samples on, and nine with thirty. Unseen clients lose up to 14 by them, as long as they take one E-step.",
    "**Clients that come later**: give them ten E-steps (`--model.algorithm.em_steps 10`) where clients contradict "
    "each other. The paper's one leaves their weights half way: with ten, unseen clients are about as good as those "
    "of the training, 7 to 11 points better than with one where each follows one rule (15 to 21 with ten components), "
    "6 where clients mix them (3 to 12), 1 or none where they are much alike. **Not where clients hold different "
    "classes**: on the quickstart's digits ten are 3 points worse than one on average over five seeds, from 11 worse "
    "to 2 better; less than two points either way in trials on MNIST and CIFAR-10 with LeNet5 that are not kept.",
    "**Where it starts**: with linear components initial models and batches hardly matter: on the same samples a "
    "quarter of a point where clients differ, and one point where they are much alike. With networks one start is no "
    "measurement.",
    "**Learning rate**: begin with FedAvg's. The gradient of a component carries its clients' q, and a third of a "
    "gradient seems to ask for three times the rate. It does so for the first rounds only: once q is near 0 or 1, "
    "whoever holds a component gives it whole gradients. On CIFAR-10 0.1 was ahead of 0.03 after 30 rounds, by five "
    "points with a wide network and by eight with LeNet5, and diverged later with both; so did FedAvg with LeNet5. "
    "Adam, ahead by eight after 30 rounds too, and 0.1 with `--model.solver.clip_norm 1`, the one bound tried, did not "
    "diverge, and ended 0.8 points below 0.03 on average and 2.5 and 3 on unseen clients, though 3 and 4 above it in "
    "the worst decile. FedAvg+ was level with FedEM if clipped, and 1.9 ahead of it by Adam; one seed.",
    "**How to see it in a run of your own**: `clients.csv` holds the mixtures. Where nearly all have one weight above "
    "0.95, you run clusters that never talk; where all stay near 1/M, one model would do.",
)


def when_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Advice, then a row for each situation."""
    rows = []
    for what, clients, samples, rounds, setting, own in situations(scale):
        records = {name: kept.all(setting.runs(own, [name])) for name in COMPARED}
        if not records["fedem"] or not records["fedavg"]:
            continue
        gain = mean(records["fedem"]) - mean(records["fedavg"])
        cells = [cell(some, ["test/seen/accuracy"], len(own)) for some in records.values()]
        rows.append([what, clients, samples, rounds, *cells, f"{gain:+.1f}"])
    head = ["clients differ in", "clients", "training samples of each", "rounds, clients in each"]
    text = (
        "Test accuracy of clients of the training in percent, ± standard deviation where there are several seeds, and "
        "by how much FedEM with three components is above FedAvg. The first, third and sixth rows are FedEM's CNN on "
        "a GPU with one seed (the first with rate 0.1 for FedEM, 0.03 for the others), the fourth and the seventh are "
        "LeNet5 on a CPU, one seed too; the settings of the others are those of [Table 2](fedem-table2.md). Learning "
        "rates: [Real images](fedem-images.md) and Table 2's page."
    )
    advice = [line for part in ADVICE for line in wrap(part, bullet=True)]
    return [
        *advice, "", "## What it rests on", "", *wrap(text), "",
        *grid([*head, *(LABELS[name] for name in COMPARED), "FedEM − FedAvg"], rows), "",
        *wrap(
            "Ten situations are no law: heterogeneity, number of samples and rounds change together from row to row. "
            "The last two rows, where FedEM is above FedAvg and Local above both, have few rounds and few clients: no "
            "common model had time."
        ),
        "", *grid_lines(kept, scale, seeds), "", *number_lines(kept, scale, seeds), "",
        *step_lines(kept, scale, seeds), "", *start_lines(kept, scale),
    ]  # fmt: skip


TABLES = [
    Table("when-mixtures-help", when_runs, when_body, grid_picture),
]
