"""Work on a device that is captured once and replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

import torch


class GraphPool:
    """Memory for what is captured, which work that never runs at the same time shares.

    torch gives a pool up for good when the last graph in it goes, so the latest one stays until the next is there.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.latest: torch.cuda.CUDAGraph | None = None


class Captured:
    """Work on the device that is done again and again on the same tensors: on a GPU it is captured the second time, then replayed.

    The first time libraries set themselves up for its shapes, which cannot be captured. Without a pool nothing is captured.
    """

    def __init__(self, work: Callable[[], None], pool: GraphPool | None) -> None:
        self.work, self.pool = work, pool
        self.begun = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.pool is None or not self.begun:
            self.begun = True
            self.work()
            return
        if self.graph is None:
            self.graph = self.pool.latest = self._captured(self.pool)
        self.graph.replay()

    def _captured(self, pool: GraphPool) -> torch.cuda.CUDAGraph:
        """The work as a graph. Not by `torch.cuda.graph`, which collects garbage and empties caches each time.

        Nothing is collected meanwhile: a graph of before that is freed while another is captured spoils it.
        """
        graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
            try:
                self.work()
            except BaseException:
                with suppress(RuntimeError):  # what is half captured cannot be ended in order, and hides why
                    graph.capture_end()
                raise
            graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph
