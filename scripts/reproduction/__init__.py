"""Tables and figures of the papers, made from configs/experiment/ by scripts/reproduce.py."""
