"""Images that need no download: JPEGs of ten classes, a shape filled with a texture, drawn from a seed.

Place, size, angle, colours and the texture's period vary from image to image, so that neither a colour nor a pixel gives a class away.
"""

import io
import itertools

import numpy as np
from PIL import Image

from parascale.data.progress import Progress

SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("stripes", "checks")
CLASSES = tuple(f"{shape}-{texture}" for shape, texture in itertools.product(SHAPES, TEXTURES))
SPLIT_NUMBERS = {"train": 0, "validation": 1, "test": 2}


def draw(label, settings, stream):
    """One image of class `label`: uint8 array of size × size × 3. stream: numbers that name it, for the generator."""
    random = np.random.default_rng([settings.seed, *stream])
    size = settings.size
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    x, y = x - random.uniform(-0.12, 0.12), y - random.uniform(-0.12, 0.12)
    shape, texture = divmod(label, len(TEXTURES))
    turn = random.uniform(-0.35, 0.35)  # radians: a square stays a square and never looks like a diamond
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    inside = _inside(SHAPES[shape], u, v, random.uniform(0.26, 0.38))
    # Where the texture is bright. Its angle is free: stripes run anywhere, checks turn with them.
    angle, period = random.uniform(0, np.pi), random.uniform(0.11, 0.16)
    phase = random.uniform(0, 2 * np.pi, 2)
    waves = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period + phase[0])
    if TEXTURES[texture] == "checks":
        waves *= np.sin((y * np.cos(angle) - x * np.sin(angle)) * 2 * np.pi / period + phase[1])
    # Any hues, but far enough apart in brightness to be seen.
    background, dark, light = (random.uniform(*span, 3) for span in ((90, 165), (0, 60), (195, 255)))
    pixels = np.where(inside[..., None], np.where(waves[..., None] > 0, light, dark), background)
    pixels = pixels + random.normal(0.0, settings.noise, (size, size, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def encode(pixels, quality):
    """A JPEG of an array of pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def draw_images(folder, settings):
    """Write `<folder>/<split>/<class>/<number>.jpg` for every split; the classes take turns. settings: parascale.settings.formats.Images."""
    counts = {split: getattr(settings, split) for split in SPLIT_NUMBERS}
    for split, name in itertools.product(SPLIT_NUMBERS, CLASSES):
        (folder / split / name).mkdir(parents=True, exist_ok=True)
    with Progress("drawing", "images", sum(counts.values())) as progress:
        for split, count in counts.items():
            for number in range(count):
                label = number % len(CLASSES)
                pixels = draw(label, settings, (SPLIT_NUMBERS[split], number))
                path = folder / split / CLASSES[label] / f"{number:07d}.jpg"
                path.write_bytes(encode(pixels, settings.quality))
                progress.add(1)


def _inside(shape, u, v, radius):
    """Where a shape of a given radius (of the image's width) is; u, v: coordinates in its own frame."""
    distance = np.hypot(u, v)
    if shape == "disc":
        return distance < radius
    if shape == "ring":
        return (distance < radius) & (distance > radius * 0.55)
    if shape == "square":
        return np.maximum(abs(u), abs(v)) < radius * 0.88
    if shape == "cross":
        return (np.minimum(abs(u), abs(v)) < radius * 0.36) & (np.maximum(abs(u), abs(v)) < radius)
    # A triangle that stands on its base, its centre of mass near the origin.
    return (v < radius * 0.7) & (abs(u) < (v + radius * 1.1) * 0.6)
