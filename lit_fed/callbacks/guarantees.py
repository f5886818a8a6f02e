"""What a private run may promise."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_fed.core.errors import notice
from lit_fed.core.types import RoundRecord
from lit_fed.training.hooks import FederatedCallback, federated, log_round
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.privacy import private_part

__all__ = ["Guarantees", "guarantee_in_words", "guarantee_of"]


def guarantee_of(module: FederatedModule, exact: bool = True) -> dict[str, Any]:
    """What holds after the releases so far, under `privacy/…`; {} without `--model.privacy`.

    It follows from what the server remembers, so a run that was resumed goes on where it was.

    Args:
        module: the module of the run.
        exact: False where many rounds ask, and ε may be larger by a thousandth or two.
    """
    return {f"privacy/{name}": value for name, value in module.history.guarantee(module.federation, exact).items()}


class Guarantees(FederatedCallback):
    """Logs what differential privacy promises and costs; does nothing without `--model.privacy`.

    Keys: after each evaluation `privacy/epsilon`, left out where it is infinite, and `privacy/delta`; after each round
    `privacy/clip_norm`, `privacy/noise_share`, the expected norm of the noise over that of the released change (near 1
    there is nothing but noise), and `privacy/clipped_share`, the share of the clients whose change was scaled down.
    At the end `summary.json` says also who computed ε, for whom it holds, and what it does not cover. Of these keys
    `privacy/clipped_share` is not covered itself.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a fit that cannot keep what was asked for, and say what ε will be."""
        module = federated(pl_module)
        federation, start, privacy = module.federation, module.history.warm_start, module.settings.privacy
        found = private_part(federation.algorithm, federation.shared)
        if found is None or privacy is None:
            return
        lines = [] if start is None else privacy.check_start(start.path, start.spent)
        for line in lines + found[0].plan(federation.context("plan"), found[1]):
            if trainer.is_global_zero:
                notice(line)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Log what the round's release was worth."""
        found = private_part(module.federation.algorithm, module.federation.shared)
        if found is not None:
            worth = found[0].worth(found[1])
            log_round(trainer, module, {f"privacy/{name}": value for name, value in worth.items()})

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log ε and δ beside the statistics of the evaluation."""
        module = federated(pl_module)
        if trainer.state.fn != "fit":
            return
        found = {
            name: value
            for name, value in guarantee_of(module, exact=False).items()
            if name.startswith(("privacy/epsilon", "privacy/delta")) and math.isfinite(value)
        }
        log_round(trainer, module, found)


def guarantee_in_words(found: dict[str, Any]) -> str:
    """Two lines for the person at the keyboard, of what `guarantee_of` returns; "" without privacy."""
    if not found:
        return ""
    name = next(one for one in found if one.startswith("privacy/epsilon"))
    epsilon = f"{found[name]:.4g}" if math.isfinite(found[name]) else "infinite, since there is no noise"
    larger = ", for a larger population that is imitated" if name.endswith("larger_cohort") else ""
    return (
        f"privacy: ε {epsilon}{larger}, δ {found['privacy/delta']:g} after {found['privacy/releases']} releases "
        f"({found['privacy/accountant']})\n"
        f"  for: {found['privacy/unit']}, {found['privacy/adjacency']}; not for: {found['privacy/not_covered']}\n"
    )
