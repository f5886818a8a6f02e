"""Pure, picklable, CPU-testable: types, trees, seeds, tasks, local solvers, plans and reductions."""
