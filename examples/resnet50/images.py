"""Images with the statistics of photographs, from a seed: what calibrates and tries a network when there are no photos.

White noise would calibrate an image network wrongly: it has no edges, no colours and no flat parts, and activations on
it lie elsewhere than on photographs. These images are dead leaves (Lee, Mumford and Huang, "Occlusion Models for
Natural Images", 2001): discs that hide each other, with radii of density r^-3, which gives sharp edges at every scale
and the 1/f spectrum of photographs. Colours have the mean and covariance of ImageNet's pixels, and each leaf has a
1/f texture. They come in kinds, each with a palette, a range of radii and a contrast of its own, so that there is
something to tell apart.

They are no substitute for the photographs of a real task: calibrate on those where you have them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

KINDS = 10
# ImageNet's mean and standard deviation, as every published ResNet expects them.
MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
# Variances and axes of ImageNet's RGB pixels, from 0 to 1 (Krizhevsky et al., 2012): brightness, then blue to yellow,
# then green to magenta.
_VARIANCES = np.array([0.2175, 0.0188, 0.0045])
_AXES = np.array([[0.5675, 0.7192, 0.4009], [0.5808, -0.0045, -0.8140], [0.5836, -0.6948, 0.4203]])
_LEAVES = 600
_COLOURS = 6
_KIND_SEED = 2001


def make_images(count: int, *, side: int, seed: int) -> tuple[Images, Labels]:
    """
    Return images and the kind of each, all kinds equally often; the same seed gives the same images.

    Args:
        count: How many.
        side: Height and width in pixels.
        seed: Other seeds give other images of the same kinds.

    Returns:
        RGB images, shape (count, 3, side, side), and kinds from 0 to 9, shape (count,).
    """
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(np.arange(count) % KINDS).astype(np.int64)
    images = [_leaves(int(kind), side, rng) for kind in kinds]
    return np.stack(images), kinds


def normalise(images: Images) -> Floats:
    """Return RGB images of shape (N, 3, H, W) as the model wants them: float32, ImageNet's mean and deviation."""
    scaled: Doubles = (images / 255.0 - MEAN[:, None, None]) / STD[:, None, None]
    return scaled.astype(np.float32)


def _leaves(kind: int, side: int, rng: np.random.Generator) -> Images:
    """Return one image of a kind, shape (3, side, side)."""
    style = np.random.default_rng([_KIND_SEED, kind])
    palette = MEAN + _colours(_COLOURS, style)
    smallest, largest = side * style.uniform(0.01, 0.04), side * style.uniform(0.15, 0.5)
    contrast = style.uniform(0.02, 0.12)
    canvas = np.broadcast_to(palette[0], (side, side, 3)).copy()
    for _ in range(_LEAVES):
        radius = rng.uniform(largest**-2, smallest**-2) ** -0.5
        colour = palette[rng.integers(_COLOURS)] + rng.normal(0, 0.03, 3)
        _paint_disc(canvas, rng.uniform(-radius, side + radius, 2), radius, colour)
    canvas += contrast * _texture(side, rng)[:, :, None]
    light = rng.uniform(0.85, 1.15)
    pixels: Images = np.rint(np.clip(canvas * light, 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _paint_disc(canvas: Doubles, centre: Doubles, radius: float, colour: Doubles) -> None:
    """Fill a disc in an image of shape (side, side, 3)."""
    first = np.maximum(np.floor(centre - radius), 0).astype(int)
    last = np.maximum(np.ceil(centre + radius), 0).astype(int) + 1
    part = canvas[first[0] : last[0], first[1] : last[1]]  # a view, cut off at the far edges
    rows, columns = np.ogrid[: part.shape[0], : part.shape[1]]
    row, column = centre - first
    part[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = colour


def _colours(count: int, rng: np.random.Generator) -> Doubles:
    """Return deviations from the mean colour with the covariance of ImageNet's pixels, shape (count, 3)."""
    deviations: Doubles = (rng.normal(size=(count, 3)) * np.sqrt(_VARIANCES)) @ _AXES.T
    return deviations


def _texture(side: int, rng: np.random.Generator) -> Doubles:
    """Return noise whose amplitudes fall as 1/f, deviation 1, shape (side, side)."""
    frequencies = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequencies[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.normal(size=(side, side))) / frequencies
    noise = np.fft.irfft2(spectrum, s=(side, side))
    scaled: Doubles = noise / noise.std()
    return scaled
