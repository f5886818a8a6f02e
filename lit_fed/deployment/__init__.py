"""Clients on other machines: packets between server and nodes, transports, and the work of a node.

    federation (data set of sizes) -> rounds -> remote (client trainer) -> messages, wire -> transport -> node
The rounds are those of `lit_fed.rounds`; a node runs the same functions of the algorithm on its own samples.
"""

from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "ClientDataSet")

__all__ = [*_FOUND]
