"""The one server that all tests fork processes from. A start costs 0.1 s, as it has loaded what takes longer than most tests."""

import multiprocessing

# A Python process has one such server, and the last list that it is given before it starts counts: hence a single one.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("pytest", "parascale.train.loop", "tests.distributed.examine", "tests.benchmarks.fake_steps"),
        # What a first step imports: the optimizer asks for dynamo, and the record for TensorBoard's messages.
        *("torch._dynamo", "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"),
        *("snakemake.cli", "matplotlib.figure", "parascale.cli", "parascale.plan.planner"),
    ]
)
