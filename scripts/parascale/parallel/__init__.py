"""Parallel training strategies, one per file, composed by `parallelize()` on a layout's mesh."""

from parascale.parallel.mesh import Mesh, make_mesh, start_processes, stop_processes
from parascale.parallel.parallelize import ParallelModel, check_plans, parallelize

__all__ = ["Mesh", "ParallelModel", "check_plans", "make_mesh", "parallelize", "start_processes", "stop_processes"]
