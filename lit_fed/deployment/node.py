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
from lit_fed.clients.store_files import KEPT_STATE
from lit_fed.deployment.kept import keep_training, kept_versions
from lit_fed.deployment.messages import read_question
from lit_fed.deployment.node_data import NodeData
from lit_fed.deployment.node_training import NodeTraining
from lit_fed.deployment.refusal import REFUSALS, RefusalError, refusing
from lit_fed.deployment.session_facts import read_session, session_name
from lit_fed.deployment.settings import settings_from_json
from lit_fed.deployment.wire import Packet, WireError, from_bytes, to_bytes
from lit_fed.errors import ClientError, WriteError, logged
from lit_fed.system.files import write_atomically

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
        """The answer to a packet; what goes wrong is told by a code alone, and its text goes to this node's log."""
        try:
            return to_bytes(self._answer(from_bytes(data)))
        except WireError as error:
            code, text = "packet", str(error)
        except RefusalError as error:
            code, text = error.code, str(error)
        except ClientError as error:
            lost = isinstance(error.__cause__, FileNotFoundError)
            code, text = "states missing" if lost else "states damaged", str(error)
            code = code if error.stage == KEPT_STATE else "error"
        except (OSError, WriteError) as error:
            code, text = "disk", str(error)
        except Exception as error:
            code, text = "error", f"{type(error).__name__} in an answer"
            traceback.print_exc(file=sys.stderr)
        logged(f"the server's question is refused ({code}): {text}")
        return to_bytes(Packet({"refused": code}))

    def _answer(self, packet: Packet) -> Packet:
        facts = read_question(packet)
        kind = facts["kind"]
        if kind == "facts":
            return Packet({"version": lit_fed.__version__, "facts": self.data.facts.plain()})
        training = self._session_of(facts)
        if training is None:
            return Packet({"needs": "session"})
        question = Packet(facts, packet.trees)
        if kind == "keep":
            answer = keep_training(training, question)
            self.over = True
            return answer
        self.over = self.over and kind == "measure"
        return training.train(question) if kind == "train" else training.measure(question)

    # ------------------------------------------------------------------ trainings
    def _session_of(self, facts: dict[str, Any]) -> NodeTraining | None:
        """The training that a packet is about; None if the server has to send its settings first."""
        name, folder = facts["session"], self.states / f"{facts['run']:x}"
        if self._training is not None and (self._training.name, self._training.states.folder) == (name, folder):
            return self._training
        kept, sent = folder / "session.json", facts.get("settings")
        if sent is None and kept.is_file():
            sent = _kept_session(kept)
        if sent is None or session_name(sent) != name:
            return None
        if sent["ids"].keys() != self.data.facts.clients.keys():
            raise RefusalError("clients", f"the server knows the clients {', '.join(sent['ids'])[:500]} of this node")
        settings = self._settings
        if settings is None:
            if sent["model"] is None:
                raise RefusalError("no settings", REFUSALS["no settings"])
            with refusing("settings"):
                settings = settings_from_json(sent["model"], self._trusted)
            if settings.privacy is not None and settings.privacy.noise_seed is not None:
                raise RefusalError("noise seed", REFUSALS["noise seed"])
        with refusing("start"):
            self._training = NodeTraining(name, sent, settings, self.data, folder)
        self._training.states.kept = kept_versions(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(sent))
        return self._training


def _kept_session(path: Path) -> dict[str, Any] | None:
    """The settings that a server sent before; None where the file holds something else, so that they are sent again."""
    try:
        return read_session(json.loads(path.read_text()), path.name)
    except (ValueError, RecursionError):
        return None
