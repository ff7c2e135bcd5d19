"""Models: plain modules that know nothing of parallelism.

A model may *offer plans*, which are plain data and which `parascale.parallel` reads:

- `shard_units`: patterns of submodules that FSDP gathers, and that are checkpointed or compiled, one at a time (`"blocks.*"`);
- `tensor_plan`: pattern → how tensor parallelism splits that submodule (see `parallel/tensor.py`);
- `pipeline_plan`: which submodules stand before, in and after the sequence of blocks that is cut into stages.

A layout that needs a plan which a model does not offer is refused, naming those that it has.
"""

from parascale.models.build import build_model, initialise
from parascale.models.plans import PipelinePlan

__all__ = ["PipelinePlan", "build_model", "initialise"]
