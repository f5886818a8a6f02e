"""A client's machine: its samples and its states never leave it.

It answers packets. Each of them is complete, but for the settings of the training, which are sent once and kept beside
the states; so a process may be killed at any time and another one answers the same packet again.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lit_fed
from lit_fed.clients.session import ModelSettings
from lit_fed.core.errors import ClientError, ConfigError, logged
from lit_fed.core.machine.files import write_atomically
from lit_fed.deployment.kept import keep_training, kept_versions
from lit_fed.deployment.node_data import NodeData
from lit_fed.deployment.node_training import NodeTraining
from lit_fed.deployment.session_facts import session_name
from lit_fed.deployment.settings import settings_from_json
from lit_fed.deployment.wire import Packet, WireError, from_bytes, to_bytes

__all__ = ["Node"]


class Node:
    """Answers what a server asks of the clients of one machine.

    Args:
        root: folder with `seen/*.npz`, and `unseen/*.npz` of clients that are served and never train, as of
            `ClientFolder`.
        states: folder for the states of clients, and for the key of this node's digests.
        trusted: modules whose classes the server may ask for beside those of lit_fed.
        settings: of the training, where server and node are given them by programs; None: the server sends them.

    Attributes:
        over: the last training is finished, and the node keeps what serving its clients takes.

    Raises:
        ConfigError: naming what is wrong with the files.
    """

    def __init__(
        self, root: str | Path, states: str | Path, trusted: Sequence[str] = (), settings: ModelSettings | None = None
    ) -> None:
        self.root, self.states = Path(root).expanduser(), Path(states).expanduser()
        self._trusted, self._settings = tuple(trusted), settings
        self.data = NodeData(self.root, self.states)
        self._training: NodeTraining | None = None
        self.over = False

    def handle(self, data: bytes) -> bytes:
        """The answer to a packet; what goes wrong is an answer too, which says nothing of the samples."""
        try:
            packet = from_bytes(data)
            return to_bytes(self._answer(packet))
        except (WireError, ConfigError) as error:
            return to_bytes(Packet({"refused": str(error)}))
        except ClientError as error:
            logged(str(error))
            return to_bytes(Packet({"refused": f"{error.stage} of client {error.client_id} cannot be used"}))
        except Exception as error:
            logged(f"{type(error).__name__} in an answer:")
            traceback.print_exc(file=sys.stderr)
            said = f"{type(error).__name__}; the log of the node says more"
            return to_bytes(Packet({"refused": said}))

    def _answer(self, packet: Packet) -> Packet:
        kind = packet.facts.get("kind")
        if kind == "facts":
            return Packet({"version": lit_fed.__version__, "facts": self.data.facts.plain()})
        if kind not in ("train", "measure", "keep"):
            raise WireError(f"the server asks for {str(kind)[:20]!r}, which this version does not know")
        training = self._session_of(packet.facts)
        if training is None:
            return Packet({"needs": "session"})
        if kind == "keep":
            answer = keep_training(training, packet)
            self.over = True
            return answer
        self.over = self.over and kind == "measure"
        return training.train(packet) if kind == "train" else training.measure(packet)

    # ------------------------------------------------------------------ trainings
    def _session_of(self, facts: dict[str, Any]) -> NodeTraining | None:
        """The training that a packet is about; None if the server has to send its settings first."""
        name, folder = str(facts["session"]), self.states / f"{int(facts['run']):x}"
        if self._training is not None and (self._training.name, self._training.states.folder) == (name, folder):
            return self._training
        kept, sent = folder / "session.json", facts.get("settings")
        if sent is None and kept.is_file():
            sent = json.loads(kept.read_text())
        if sent is None or session_name(sent) != name:
            return None
        settings = self._settings
        if settings is None:
            if sent["model"] is None:
                raise ConfigError("the server is a program that sends no settings; give `Node` those of its module")
            settings = settings_from_json(sent["model"], self._trusted)
            if settings.privacy is not None and settings.privacy.noise_seed is not None:
                raise ConfigError("the server sends the seed of this node's noise, which it could then subtract")
        self._training = NodeTraining(name, sent, settings, self.data, folder)
        self._training.states.kept = kept_versions(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(sent))
        return self._training
