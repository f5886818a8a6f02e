"""Counts and amounts: losses against scipy, fits against scikit-learn, mixtures by hand, labels that are refused."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LinearRegression, PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from lit_fed import FedAvg, Linear, LocalSolver, LogNormal, Poisson, Task, rounds, serving
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError


def made(n=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, rng.poisson(np.exp(0.5 + x @ [0.6, -0.4])), np.exp(1 + x @ [0.8, 0.3] + 0.4 * rng.normal(size=n))


def test_losses_are_those_of_scipy():
    _, counts, amounts = made()
    out = torch.linspace(-1, 2, 60, dtype=torch.float64)
    y = torch.tensor(counts, dtype=torch.float64)
    np.testing.assert_allclose(Poisson().losses(out[:, None], y), -stats.poisson.logpmf(counts, out.exp()), rtol=1e-12)
    z = torch.tensor(amounts)
    density = -stats.lognorm.logpdf(amounts, 1.0, scale=out.exp()) - np.log(amounts) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(LogNormal().losses(out[:, None], z), density, rtol=1e-9, atol=1e-12)
    for target, label in ((Poisson(), y), (LogNormal(), z)):
        given = out[:, None].clone().requires_grad_()
        target.losses(given, label).sum().backward()
        torch.testing.assert_close(target.residual(out[:, None], label), given.grad, rtol=1e-12, atol=1e-12)
        guess = target.log_likelihood
        best = torch.stack(
            [-guess(torch.full((60, 1), one, dtype=torch.float64), label).mean() for one in out.tolist()]
        )
        assert target.guessing_loss(label) == pytest.approx(float(best.min()), abs=2e-3)
        assert target.guessing_loss(label) <= float(best.min()) + 1e-12


def test_a_mixture_predicts_the_mean_rate_and_errors_are_deviances():
    _, counts, _ = made(6)
    outputs, y = torch.randn(6, 2, 1, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    prediction = Poisson().mix(weights, outputs)
    rate = (weights * outputs[..., 0].exp()).sum(1)
    torch.testing.assert_close(Poisson().shown(prediction), rate)
    loss, error = Poisson().score(prediction, y)
    each = stats.poisson.pmf(counts[:, None], outputs[..., 0].exp().numpy())
    np.testing.assert_allclose(loss, -np.log(each @ weights.numpy()), rtol=1e-12)
    assert float(error.mean()) == pytest.approx(mean_poisson_deviance(counts, rate), rel=1e-12)


@pytest.mark.parametrize("target", [Poisson(), LogNormal()])
def test_one_client_finds_the_generalised_linear_model(target):
    x, counts, amounts = made()
    if target.name == "Poisson":
        y, wanted = counts, PoissonRegressor(alpha=0, tol=1e-10, max_iter=1000).fit(x, counts)
    else:
        y, wanted = amounts, LinearRegression().fit(x, np.log(amounts))
    train = Split.of([(torch.tensor(x).float(), torch.tensor(y).float())])
    task = Task.create(lambda: Linear((2,), 1), target.fitted(train.y))
    solver = LocalSolver(lr=0.1, local_epochs=5, schedule="constant")
    federation = rounds.start(FedAvg(), task, train, solver=solver, batch_size=0)
    for _ in range(200):
        federation.round(train)
    found = federation.shared.models.parameters
    np.testing.assert_allclose(found["linear.weight"].flatten(), wanted.coef_, atol=1e-4)
    np.testing.assert_allclose(found["linear.bias"].flatten(), wanted.intercept_, atol=1e-4)
    assert serving.evaluate(federation, train).loss.item() / 60 < target.guessing_loss(train.y)


def test_labels_that_are_no_counts_or_amounts_are_refused():
    with pytest.raises(ConfigError, match=r"Poisson needs counts 0, 1, 2, ….* hold 1.5; correct them"):
        Poisson().fitted(torch.tensor([1.0, 1.5]))
    with pytest.raises(ConfigError, match=r"LogNormal needs numbers above 0.* hold 0; .* Regression"):
        LogNormal().fitted(torch.tensor([1.0, 0.0]))
    with pytest.raises(ConfigError, match=r"Poisson needs counts.* have shape \[3, 2\]"):
        Poisson().fitted(torch.zeros(3, 2))


def test_counts_of_a_table_are_trained_predicted_and_exported(tmp_path, monkeypatch):
    from lit_fed.cli import main

    monkeypatch.chdir(tmp_path)
    x, counts, _ = made()
    table = pd.DataFrame({"ward": np.repeat(list("abc"), 20), "age": x[:, 0], "dose": x[:, 1], "falls": counts})
    table.to_csv("falls.csv", index=False)
    place = ["--data.dataset", "Table", "--data.dataset.path", "falls.csv", "--data.dataset.client_column", "ward"]
    place += ["--data.dataset.label_column", "falls", "--model.target", "Poisson", "--data.batch_size", "8"]
    main(["fit", *place, "--trainer.max_epochs", "20", "--name", "falls"])
    main(["predict", "--ckpt_path", "runs/falls/version_0/checkpoints/last.ckpt"])
    shown = pd.read_csv("runs/falls/version_0/predictions.csv")
    assert (shown["prediction"] > 0).all()
    clients = pd.read_csv("runs/falls/version_0/clients.csv")
    for name, own in shown.groupby("client"):
        deviance = clients.set_index("client").loc[name, "deviance"]
        assert mean_poisson_deviance(own["label"], own["prediction"]) == pytest.approx(deviance, rel=1e-3)
    main(["export", "--ckpt_path", "runs/falls/version_0/checkpoints/last.ckpt", "--client", "a", "--output", "a.pt2"])
    program = torch.export.load("a.pt2").module()
    assert (program(torch.zeros(2, 2, dtype=torch.float64)) > 0).all()
