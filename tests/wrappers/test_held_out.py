"""Evidence for blends: held-out predictions, against a loop."""

import pytest
import torch

from lit_fed import Binary, Multiclass, Regression
from lit_fed.wrappers.blend import FOLDS, calibrated, held_out, negative_log_likelihood, stacked

STRENGTHS = [1.0, 30.0]


@pytest.mark.parametrize("number", [1, 3, 12])
@pytest.mark.parametrize("target", [Binary(), Multiclass(num_classes=3), Regression()], ids=lambda one: one.kind)
def test_each_sample_is_predicted_by_weights_of_other_folds(target, number):
    rng = torch.Generator().manual_seed(number)
    outputs = 2 * torch.randn(number, 4, target.num_outputs, generator=rng)
    y = torch.randn(number, generator=rng) if target.continuous else torch.randint(0, 2, (number,), generator=rng)
    prior, spread = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.5, 1.0, 2.0, 1.0])
    found = held_out(target, outputs, y, prior, spread, torch.tensor(STRENGTHS))
    for row, strength in zip(found, STRENGTHS, strict=True):
        for place in range(number):
            others = (torch.arange(number) % FOLDS != place % FOLDS).float()
            losses = negative_log_likelihood(target, outputs, y, others, spread)
            weights = stacked(losses, others, prior, strength)
            mixed = target.mix(weights, calibrated(target, outputs[place : place + 1], spread))
            wanted = target.score(mixed, y[place : place + 1])[0]
            torch.testing.assert_close(row[place : place + 1], wanted, rtol=1e-4, atol=1e-5)
