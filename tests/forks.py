"""The single server from which all tests fork processes. A fork takes 0.1 s, because the server has imported the slow modules."""

import multiprocessing

# A Python process has only one forkserver, which preloads the last list set before its start.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pytest", "parascale.train.loop", "tests.distributed.examine", "tests.benchmarks.fake_steps"),
        # Imported in a first step, by the optimizer and by the record for TensorBoard.
        *("torch._dynamo", "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
        *("snakemake.cli", "matplotlib.figure", "parascale.cli", "parascale.plan.planner"),
    ]
)
