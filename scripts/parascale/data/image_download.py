"""Get raw images: draw them, download them, or use them in place. The manifest says where they are.

Files in place are not hashed: the index has every file's path and size, and converted formats have every sample's checksum.
"""

import dataclasses
import functools
import io
import itertools
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

from parascale.data.progress import Progress
from parascale.data.sources import ATTEMPTS, hub, local, made, url
from parascale.data.sources.raw import write_manifest
from parascale.files import atomic_folder, atomic_path

SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("stripes", "checks")
CLASSES = tuple(f"{shape}-{texture}" for shape, texture in itertools.product(SHAPES, TEXTURES))
SPLIT_NUMBERS = {"train": 0, "validation": 1, "test": 2}


def download_images(source, images, output, attempts=ATTEMPTS):
    """Like `sources.download`, for an image set. images: parascale.settings.formats.Images (for `builtin`)."""
    source.check("the source of the images", of_images=True)
    if source.location or source.kind == "files":
        return made(source, output, _point_at, attempts, keep=False)
    if source.kind == "builtin":
        return made(source, output, functools.partial(_draw, images), attempts, keep=False)
    fetch = functools.partial(url.fetch, of_images=True) if source.kind == "url" else hub.fetch
    return made(source, output, fetch, attempts)


def images_root(raw):
    """The folder that contains the images of a Raw."""
    return Path(raw.manifest["origin"].get("folder", raw.folder))


def _point_at(source, output, attempts):
    with atomic_folder(output) as partial:
        write_manifest(partial, source, {"folder": str(local.location(source).absolute())}, {})


def _draw(images, source, output, attempts):
    with atomic_path(output) as partial:
        draw_images(partial, images)
        origin = {"drawn": dataclasses.asdict(images), "classes": list(CLASSES), "pillow": PIL.__version__}
        write_manifest(partial, source, origin, {})


def draw(label, settings, stream):
    """Draw an image of class `label`: uint8 array of size × size × 3. stream: numbers of the image, for the seed."""
    random = np.random.default_rng([settings.seed, *stream])
    size = settings.size
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    x, y = x - random.uniform(-0.12, 0.12), y - random.uniform(-0.12, 0.12)
    shape, texture = divmod(label, len(TEXTURES))
    turn = random.uniform(-0.35, 0.35)  # radians; small enough that a square never looks like a diamond
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    inside = _inside(SHAPES[shape], u, v, random.uniform(0.26, 0.38))
    # The texture is bright where `waves` > 0. Its angle is arbitrary.
    angle, period = random.uniform(0, np.pi), random.uniform(0.11, 0.16)
    phase = random.uniform(0, 2 * np.pi, 2)
    waves = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period + phase[0])
    if TEXTURES[texture] == "checks":
        waves *= np.sin((y * np.cos(angle) - x * np.sin(angle)) * 2 * np.pi / period + phase[1])
    # Any hues, but of clearly different brightness.
    background, dark, light = (random.uniform(*span, 3) for span in ((90, 165), (0, 60), (195, 255)))
    pixels = np.where(inside[..., None], np.where(waves[..., None] > 0, light, dark), background)
    pixels = pixels + random.normal(0.0, settings.noise, (size, size, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def encode(pixels, quality):
    """Encode an array of pixels as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def draw_images(folder, settings):
    """Write `<folder>/<split>/<class>/<number>.jpg`, cycling through the classes. settings: parascale.settings.formats.Images."""
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
    """Mask of a shape. radius: share of the image's width. u, v: coordinates in the shape's frame."""
    distance = np.hypot(u, v)
    if shape == "disc":
        return distance < radius
    if shape == "ring":
        return (distance < radius) & (distance > radius * 0.55)
    if shape == "square":
        return np.maximum(abs(u), abs(v)) < radius * 0.88
    if shape == "cross":
        return (np.minimum(abs(u), abs(v)) < radius * 0.36) & (np.maximum(abs(u), abs(v)) < radius)
    # A triangle on its base, with its centre of mass near the origin.
    return (v < radius * 0.7) & (abs(u) < (v + radius * 1.1) * 0.6)
