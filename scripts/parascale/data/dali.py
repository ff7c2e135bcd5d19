"""Images decoded on the GPU by NVIDIA DALI, where it is installed: any of our readers feeds its pipeline."""

import numpy as np

from parascale.errors import RequirementError


def dali_batches(reader, batches, batch, size, device_id=0, threads=4):
    """Yield (images, labels) as DALI's tensor lists: batch × size × size × 3 of uint8, on the GPU, and int32 labels.

    reader: of images, in any format. batches: an iterable of lists of sample numbers (as in parascale.data.loader), none
    longer than `batch`. size: pixels that each image is resized to. device_id: the GPU; None decodes on the CPU. Raises
    RequirementError where DALI is not installed.
    """
    try:
        from nvidia.dali import fn, pipeline_def, types
    except ImportError:
        raise RequirementError(
            "decoding by DALI needs NVIDIA's package for your CUDA version (such as `nvidia-dali-cuda130`) and a GPU; "
            "without it, the DataLoader decodes on the CPU"
        ) from None

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=device_id)
    def decoded():
        encoded, labels = fn.external_source(
            source=_encoded(reader, batches), num_outputs=2, dtype=[types.UINT8, types.INT32]
        )
        images = fn.decoders.image(encoded, device="cpu" if device_id is None else "mixed", output_type=types.RGB)
        return fn.resize(images, size=[size, size]), labels

    pipeline = decoded()
    pipeline.build()
    while True:
        try:
            yield pipeline.run()
        except StopIteration:
            return


def _encoded(reader, batches):
    """Yield (list of encoded images, list of labels) of each batch, as arrays."""
    for indices in batches:
        images = [np.frombuffer(data, np.uint8) for data in reader.read_batch(indices)]
        yield images, [np.array([reader.labels.item(i)], np.int32) for i in indices]
