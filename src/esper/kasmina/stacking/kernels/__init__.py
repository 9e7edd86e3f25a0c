"""Kernels for many hosts at once on a GPU, where hosts are so small that the number of kernels is the time.

They are written in Triton, which comes with torch where that is built for CUDA, so only `rules.py` and `views.py` beside this folder import
them, and only there. Every size is an argument of the running kernel, so that few are compiled. What a host gets depends on its own shapes
alone, never on how many hosts there are: sums are taken in a fixed order, without atomics, and the same call gives the same bits twice.
"""
