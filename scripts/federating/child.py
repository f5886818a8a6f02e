"""`python -m lit_fed` as the server of a federation, which tells at its end how many bytes it sent and received.

`FEDERATION_COUNTS` names the file for that.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # a kill could leave half of it


def count(path: Path) -> None:
    """Write what passed between server and nodes whenever something did, by the kind of the question."""
    from lit_fed.deployment.node_pool import NodePool

    ask = NodePool.ask

    def counted(self: NodePool, *arguments: Any, **options: Any) -> Any:
        answers = ask(self, *arguments, **options)
        path.write_text(json.dumps({"sent": self.sent, "received": self.received}))
        return answers

    NodePool.ask = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    if "FEDERATION_COUNTS" in os.environ:
        count(Path(os.environ["FEDERATION_COUNTS"]))

    from lit_fed.__main__ import main

    main()
