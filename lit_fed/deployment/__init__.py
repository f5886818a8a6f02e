"""Clients on machines of their own: what passes between them and the server, and what each of them does.

    data set of sizes -> rounds -> remote client trainer -> packets -> transport -> node -> client trainer
The rounds are those of `lit_fed.rounds`; a node runs the same functions of the algorithm on its own samples.
"""
