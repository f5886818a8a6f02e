"""The privacy guarantee of a run, and the secret of its noise."""

from __future__ import annotations

import math
from pathlib import Path
from string import hexdigits
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_fed.callbacks.checkpoint import checkpoint_folder
from lit_fed.core.seeds import SECRET_BYTES, Secret
from lit_fed.core.types import RoundRecord
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.files import whole_file
from lit_fed.training.hooks import FederatedCallback, data_of, federated, log_round
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.base import part_of
from lit_fed.wrappers.privacy.feature import PrivacyFeature
from lit_fed.wrappers.privacy.settings import Private, with_private_part

__all__ = ["Guarantees", "guarantee_in_words", "guarantee_of"]

SECRET_FILE = "noise.secret"


def guarantee_of(module: FederatedModule, exact: bool = True) -> dict[str, Any]:
    """The guarantee after the releases so far, from the shared state, under `privacy/…`; {} without `--model.privacy`.

    Args:
        module: the module of the run.
        exact: False is faster, and ε may be larger by a thousandth or two.
    """
    feature, start = module.settings.feature(PrivacyFeature), module.history.warm_start
    if feature is None:
        return {}
    spent = None if start is None else start.spent
    found = feature.guarantee(module.federation, spent, starts=start is not None, exact=exact)
    if learned := " and ".join(module.facts.learned):
        found["not_covered"] += f", and {learned}, learned without noise"
    return {f"privacy/{name}": value for name, value in found.items()}


class Guarantees(FederatedCallback):
    """Logs guarantee and cost of differential privacy; needs `--model.privacy`.

    Keys: after each evaluation `privacy/epsilon`, unless infinite, and `privacy/delta`; after each round
    `privacy/clip_norm`, `privacy/noise_share`, the expected norm of the noise over that of the released change (near 1
    the change is all noise), and `privacy/clipped_share`, the share of the clients whose change was scaled down.
    `summary.json` adds the accountant, whom ε holds for, and what it does not cover. ε does not cover
    `privacy/clipped_share`.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a fit that cannot hold the guarantee, and print the planned ε."""
        module = federated(pl_module)
        federation, start, feature = (
            module.federation,
            module.history.warm_start,
            module.settings.feature(PrivacyFeature),
        )
        found = part_of(federation.algorithm, federation.shared, Private)  # type: ignore[type-abstract]
        if found is None or feature is None:
            return
        private, own = found
        lines = [] if start is None else feature.check_start(start.path, start.spent)
        said, pending = take_secret(trainer, module, private, own)
        lines += said
        own = part_of(federation.algorithm, federation.shared, Private)[1]  # type: ignore[index, type-abstract]
        lines += private.plan(federation.context("plan"), own)
        if learned := " and ".join(module.facts.learned):
            table = module.facts.columns is not None
            fix = "; --data.dataset.constants FILE learns them from a table of public rows" if table else ""
            lines.append(f"ε does not cover {learned}, which are learned from the clients' samples without noise{fix}")
        if feature.node_secret():
            keep_secret(trainer, federation.terms.secret, pending)
        for line in lines if trainer.is_global_zero else ():
            notice(line)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        found = part_of(module.federation.algorithm, module.federation.shared, Private)  # type: ignore[type-abstract]
        if found is not None:
            worth = found[0].worth(found[1])
            log_round(trainer, module, {f"privacy/{name}": value for name, value in worth.items()})

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        if trainer.state.fn != "fit":
            return
        found = {
            name: value
            for name, value in guarantee_of(module, exact=False).items()
            if name.startswith(("privacy/epsilon", "privacy/delta")) and math.isfinite(value)
        }
        log_round(trainer, module, found)

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        found = guarantee_of(module)
        summary.entries |= {name: None if value == math.inf else value for name, value in found.items()}
        summary.lines.append(guarantee_in_words(found))


def take_secret(trainer: Trainer, module: FederatedModule, private: Private, own: Any) -> tuple[list[str], int]:
    """Give all ranks the secret of the noise; a resumed run reads its own.

    The same noise under other messages could be subtracted, so a run that resumes with changes, without its secret, or
    with nodes of which others may be missing than before, gets a fresh one. The interrupted round may then be released
    twice and is charged twice, and once more for each further attempt that ends before its first checkpoint.

    Returns:
        Notices, and how many charged rounds no checkpoint has yet.

    Raises:
        ConfigError: if the secret cannot be read, or more rounds than one may be released twice.
    """
    privacy, federation, history = private.privacy, module.federation, module.history
    if privacy.noise_seed is not None:
        federation.terms = federation.terms._replace(secret=privacy.secret())  # pickled modules have another
        said = "--model.privacy.noise_seed makes the noise repeatable, so it gives no protection; it is for simulations"
        return [said], 0
    dataset = data_of(trainer).dataset
    on_nodes = dataset.is_remote and (privacy.noises_messages or privacy.noises_steps)
    goes_on, kept, told, pending = None if trainer.ckpt_path is None else Path(trainer.ckpt_path), None, [], 0
    may_differ = dataset.is_remote and getattr(dataset, "missing", None) == "drop"
    if goes_on is not None and on_nodes:  # each node has its own secret, and new noise for other questions
        if history.asks_otherwise or may_differ:
            other = "other settings" if history.asks_otherwise else "a round of which other nodes are missing"
            told = [_charged_again(module, private, own, goes_on, f"nodes draw other noise for {other}")]
    elif goes_on is not None:
        found = trainer.strategy.broadcast(read_secret(goes_on.parent) if trainer.is_global_zero else None)
        kept, pending = (None, 0) if found is None else (Secret(found[0]), found[1])
        is_its_own = kept is not None and history.noise == kept.name_beside(*history.content)
        if history.resume_with_changes or may_differ or not is_its_own:
            reason = f"{SECRET_FILE} " + (
                "is not beside it" if kept is None
                else "beside it is that of another checkpoint, or this one was changed" if not is_its_own
                else "is not used with other settings" if history.resume_with_changes
                else "is not used again where nodes may be missing"
            )  # fmt: skip
            pending = 1 if is_its_own else pending + 1
            kept, told = None, [_charged_again(module, private, own, goes_on, reason, pending)]
    if not on_nodes:
        secret = kept or federation.terms.secret
        assert secret is not None
        key: bytes = trainer.strategy.broadcast(secret.key)
        federation.terms = federation.terms._replace(secret=Secret(key))
    return told, pending


def _charged_again(module: FederatedModule, private: Private, own: Any, path: Path, reason: str, times: int = 1) -> str:
    """Charge a round that may have been released `times` more often with other noise; returns a notice.

    Raises:
        ConfigError: if there may be several.
    """
    federation = module.federation
    if path.name != "last.ckpt":
        raise ConfigError(
            f"--ckpt_path {path}: {reason}, and rounds after this checkpoint may have been released with other noise; "
            "go on from last.ckpt"
        )
    for _ in range(times):
        own = private.charged_again(federation.context("plan"), own)
    shared = with_private_part(federation.algorithm, federation.shared, own)
    federation.server.overwrite(shared)  # type: ignore[attr-defined] # of a `ModuleServer`
    often = "twice" if times == 1 else f"{times + 1} times"
    return f"{reason}: noise is drawn anew, and the round that was interrupted is charged {often}"


def keep_secret(trainer: Trainer, secret: Secret | None, pending: int) -> None:
    """Write the secret and the count of `take_secret` beside the run's checkpoints, readable by its owner only."""
    folder = checkpoint_folder(trainer)
    if folder is None or secret is None or not trainer.is_global_zero:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / SECRET_FILE, private=True) as file:
        file.write(f"{secret.key.hex()} {pending}\n".encode())


def read_secret(folder: Path) -> tuple[bytes, int] | None:
    """The secret's key beside a checkpoint, and the rounds charged without a checkpoint; None without the file.

    Raises:
        ConfigError: if the file holds something else.
    """
    path = folder / SECRET_FILE
    if not path.is_file():
        return None
    key, _, pending = path.read_text(errors="replace").strip().partition(" ")
    if (
        len(key) != 2 * SECRET_BYTES
        or not set(key) <= set(hexdigits)
        or not (pending.isdecimal() and pending.isascii())
    ):
        raise ConfigError(f"{path} is not what was written; restore it, or delete it to go on with fresh noise")
    return bytes.fromhex(key), int(pending)


def guarantee_in_words(found: dict[str, Any]) -> str:
    """Two lines for the terminal from the result of `guarantee_of`; "" without privacy."""
    if not found:
        return ""
    value = found["privacy/epsilon"]
    epsilon = f"{value:.4g}" if math.isfinite(value) else "infinite, since there is no noise"
    return (
        f"privacy: ε {epsilon}, δ {found['privacy/delta']:g} after {found['privacy/releases']} releases "
        f"({found['privacy/accountant']})\n"
        f"  for: {found['privacy/unit']}, {found['privacy/adjacency']}; not for: {found['privacy/not_covered']}\n"
    )
