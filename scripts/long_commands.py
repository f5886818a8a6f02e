"""Long commands of the pages in several lines, broken at backslashes before an option."""

import re

WIDTH = 96
"""Letters for which a code block has room on a laptop's screen."""


def in_lines(command: str) -> str:
    r"""A command with line breaks that a shell joins again.

    Example:
        >>> print(in_lines("python -m lit_fed fit " + 4 * "--trainer.max_epochs 60 "))
        python -m lit_fed fit --trainer.max_epochs 60 --trainer.max_epochs 60 --trainer.max_epochs 60 \
          --trainer.max_epochs 60
    """
    if len(command) <= WIDTH:
        return command.strip()
    lines = [""]
    for part in re.split(r" (?=--?[\w(])", command.strip()):
        if lines[-1] and len(f"{lines[-1]} {part} \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".lstrip() if len(lines) == 1 else f"{lines[-1]} {part}"
    return "\n".join(lines)
