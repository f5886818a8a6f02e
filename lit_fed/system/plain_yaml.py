"""YAML whose words stay text: of YAML 1.1 only true, false, null and decimal numbers are read as values."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import yaml

__all__ = ["PlainLoader", "read_yaml"]

STRING = "tag:yaml.org,2002:str"


class PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # there with libyaml
    """Reads `no`, `on`, `010`, `1:30` and dates as text, like every key: names of clients and columns are such words.

    Numbers may have an exponent without a point, as in Python: `1e-4`. A mapping in one line has braces: an argument
    such as `Unnamed: 0` is text.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._argument = stream if isinstance(stream, str) and "\n" not in stream else None

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if self._argument is not None and isinstance(node, yaml.MappingNode) and not node.flow_style:
            return self._argument
        return None if node is None else self.construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        self.flatten_mapping(node)
        for key, _ in node.value:
            key.tag = STRING if isinstance(key, yaml.ScalarNode) else key.tag
        return super().construct_mapping(node, deep)


PlainLoader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", "[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
              r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    ("merge", "<<", "<"),
):  # fmt: skip
    for _one in (PlainLoader, yaml.SafeDumper):  # which quotes the text 1e3
        _one.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first))


# defaults of Lightning's callbacks are members of enumerations
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, one: dumper.represent_data(one.value))


def read_yaml(text: str) -> Any:
    """The content of a YAML text, in plain types.

    Raises:
        yaml.YAMLError: if it is none.
    """
    return yaml.load(f"{text}\n", PlainLoader)
