# SPDX-License-Identifier: Apache-2.0
"""The workload of bench/blurred_images.hpp in Python: one image as torchvision's transforms make it.

The blur is torchvision's GaussianBlur, written out, because torchvision need not fit the torch that is there: a kernel
of 11 x 11, reflected borders, a depthwise conv2d (torchvision/transforms/_functional_tensor.py, gaussian_blur).
"""
import numpy
import torch
from torch.nn import functional

SIDE, BLURS, TAPS, LEAST, MOST, BATCH = 224, 10, 11, 0.1, 2.0, 64


def gaussian_blur(image, taps, sigma):
    half = (taps - 1) * 0.5
    weights = torch.exp(-0.5 * (torch.linspace(-half, half, steps=taps) / sigma).pow(2))
    weights = weights / weights.sum()
    kernel = torch.mm(weights[:, None], weights[None, :]).expand(image.shape[-3], 1, taps, taps)
    padded = functional.pad(image[None], [taps // 2] * 4, mode="reflect")
    return functional.conv2d(padded, kernel, groups=image.shape[-3])[0]


def image(number):
    """Image and label of a sample."""
    random = numpy.random.default_rng(number)
    drawn = random.standard_normal((SIDE, SIDE, 3), dtype=numpy.float32)
    pixels = torch.from_numpy(drawn.transpose(2, 0, 1)).contiguous()    # ToTensor of floats
    for sigma in random.uniform(LEAST, MOST, BLURS):
        pixels = gaussian_blur(pixels, TAPS, float(sigma))
    return pixels, number % 1000
