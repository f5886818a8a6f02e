"""A node: answers the server's packets about the clients of one machine, whose samples and states never leave it.

Each packet is complete but for the settings of the training, which are sent once and stored beside the states. So a
process may be killed at any time, and another one answers the same packet again.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lit_fed
from lit_fed.clients.store_files import KEPT_STATE
from lit_fed.deployment.kept import keep_training, kept_versions
from lit_fed.deployment.messages import read_question, read_session, session_name
from lit_fed.deployment.node_training import NodeData, NodeTraining
from lit_fed.deployment.settings import refuse_other_settings
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.errors import ClientError, ConfigError, WriteError, logged
from lit_fed.settings import ModelSettings
from lit_fed.system.files import write_atomically
from lit_fed.system.readers import FormError

__all__ = ["Node"]


class RefusalError(Exception):
    """A question that a node does not answer.

    Attributes:
        code: sent to the server, a key of `REFUSALS`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def _refusing(code: str) -> Iterator[None]:
    """Turn every error in a block, all of whose input comes from the server, into a refusal with this code."""
    try:
        yield
    except Exception as error:  # foreign numbers can make a library raise anything
        kind = "" if isinstance(error, ConfigError | FormError) else f"{type(error).__name__}: "
        raise RefusalError(code, f"{kind}{error}") from error


class Node:
    """Answers a server's questions about the clients of one machine.

    Args:
        root: folder with `seen/*.npz`, and `unseen/*.npz` of clients that are served but never train, as of
            `ClientFolder`.
        states: folder for the states of clients, and for the key of this node's digests and noise.
        settings: settings of the training, the same as the server's.
        written: the section `model` that they were made of, from `common_settings`; the server's has to equal it. None:
            a program gives the same settings to server and node.
        reveal_mixture: let the server learn the clients' mixture weights, where the algorithm sends them. No setting of
            a server changes it.

    Attributes:
        over: the last training is finished, and the node has kept what serving its clients needs.

    Raises:
        ConfigError: naming the problem with the files.
    """

    def __init__(
        self, root: str | Path, states: str | Path, settings: ModelSettings, written: dict[str, Any] | None = None,
        *, reveal_mixture: bool = False,
    ) -> None:  # fmt: skip
        self.root, self.states, self._reveals = Path(root).expanduser(), Path(states).expanduser(), reveal_mixture
        self._settings, self._written = settings, written
        self.data = NodeData(self.root, self.states)
        self._training: NodeTraining | None = None
        self.over = False

    def handle(self, data: bytes) -> bytes:
        """The answer to a packet. An error is sent as a code only; its text goes to this node's log."""
        try:
            return to_bytes(self._answer(from_bytes(data)))
        except FormError as error:
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
        """The training of a packet; None if the server has to send its settings first."""
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
        with _refusing("settings"):
            refuse_other_settings(sent["model"], self._written)
        with _refusing("start"):
            training = NodeTraining(name, sent, self._settings, self.data, folder)
        if training.rounds.algorithm.reveals_mixture and not self._reveals:
            what = "the algorithm tells the server the clients' mixture weights; --reveal-mixture allows that"
            raise RefusalError("mixture", what)
        self._training = training
        self._training.states.kept = kept_versions(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(sent))
        return self._training


def _kept_session(path: Path) -> dict[str, Any] | None:
    """The settings that a server sent before; None if the file is damaged, so that they are sent again."""
    try:
        return read_session(json.loads(path.read_text()), path.name)
    except (ValueError, RecursionError):
        return None
