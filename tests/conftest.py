"""What holds for every test: one torch thread, and how hypothesis searches."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

# On models this small a second thread makes torch slower, and the test workers have the cores already. torch reads the
# variable when it is first imported, which is after this file; tests that need no torch never import it.
os.environ["OMP_NUM_THREADS"] = "1"

# No deadline, because a shared machine stalls now and then. In CI the examples are the same every time, so that a failure there
# is caused by the change under test; elsewhere they vary, and a failure prints the line that repeats it.
settings.register_profile("esper", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("esper")


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000_000)
