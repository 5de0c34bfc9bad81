#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_oracle.py [INTO]: writes kernels.bin, what torchvision and Pillow make of small pictures.

Needs torch, torchvision and Pillow (the file in the repository: torch 2.15, torchvision 0.26, Pillow 13). Entries, little
endian: length of the name and the name, a letter (B bytes, f floats), the number of extents, the extents, the values;
numbers are 32 bits wide. A name `decode/X` is what Pillow makes of the file `file/X`.
"""
import io
import os
import struct
import sys

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F
from torchvision.transforms import InterpolationMode

HEIGHT, WIDTH = 48, 64
entries = []


def add(name: str, values) -> None:
    entries.append((name, np.ascontiguousarray(values)))


def picture(height: int, width: int, seed: int) -> np.ndarray:
    """Waves, an edge and noise: something for every frequency."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 90 * np.sin(x / (3 + c) + y / (7 - c)) + 30 * (x + c * 5 > y * 1.3) for c in range(3)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)


def add_file(name: str, image: Image.Image, kind: str, wanted=None, **options) -> None:
    file = io.BytesIO()
    image.save(file, kind, **options)
    add(f"file/{name}", np.frombuffer(file.getvalue(), np.uint8))
    add(f"decode/{name}", np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB")) if wanted is None else wanted)


def blurs(pixels: np.ndarray) -> None:
    rng = np.random.default_rng(5)
    for name, height, width in (("large", HEIGHT, WIDTH), ("small", 13, 15)):    # small: not larger than the folded radius
        sigmas = rng.uniform(0.1, 2.0, 10).astype(np.float32)
        source = torch.from_numpy(rng.normal(0, 1, (3, height, width)).astype(np.float32))
        made = source
        for sigma in sigmas:
            made = F.gaussian_blur(made, [11, 11], [float(sigma)] * 2)
        add(f"blur/{name}/from", source.numpy())
        add(f"blur/{name}/sigmas", sigmas)
        add(f"blur/{name}/to", made.numpy())
    one = F.to_tensor(pixels)
    add("blur/one", F.gaussian_blur(one, [5, 5], [1.3, 1.3]).numpy())
    add("to_float", one.numpy())
    add("normalize", F.normalize(one, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]).numpy())


def resizes(pixels: np.ndarray) -> None:
    image = Image.fromarray(pixels)
    for height, width in ((20, 31), (96, 100), (48, 17), (11, 64), (48, 64), (1, 1)):
        add(f"resize/{height}x{width}", np.asarray(image.resize((width, height), Image.BILINEAR)))
    add("resize/grey", np.asarray(image.convert("L").resize((31, 20), Image.BILINEAR)))
    add("short_side", np.asarray(F.resize(image, 33, InterpolationMode.BILINEAR)))
    add("resized_crop", np.asarray(F.resized_crop(image, 5, 7, 30, 41, [22, 24], InterpolationMode.BILINEAR)))
    for height, width in ((21, 33), (60, 40), (60, 77)):
        add(f"center/{height}x{width}", np.asarray(F.center_crop(image, [height, width])))


def decodes(pixels: np.ndarray) -> None:
    image = Image.fromarray(pixels)
    odd = Image.fromarray(pixels[:37, :51])
    add_file("444.jpg", image, "JPEG", quality=90, subsampling=0)
    add_file("420.jpg", odd, "JPEG", quality=85, subsampling=2)
    add_file("422.jpg", odd, "JPEG", quality=85, subsampling=1)
    add_file("progressive.jpg", odd, "JPEG", quality=85, progressive=True)
    add_file("restarts.jpg", odd, "JPEG", quality=60, restart_marker_blocks=2)
    add_file("grey.jpg", image.convert("L"), "JPEG", quality=90)
    add_file("cmyk.jpg", image.convert("CMYK"), "JPEG", quality=90)
    add_file("rgb.png", odd, "PNG")
    add_file("palette.png", image.quantize(37), "PNG")
    add_file("bits.png", image.quantize(3), "PNG")
    add_file("black.png", image.convert("1"), "PNG")
    add_file("grey.png", image.convert("L"), "PNG")
    alpha = Image.fromarray(pixels[..., 0])
    add_file("rgba.png", Image.merge("RGBA", (*image.split(), alpha)), "PNG")
    add_file("grey_alpha.png", Image.merge("LA", (image.convert("L"), alpha)), "PNG")
    # Pillow cuts 16 bits of grey off at 255; ours are the upper 8 bits, as in colours.
    wide = (pixels[..., 1].astype(np.uint16) << 8) + pixels[..., 2]
    add_file("grey16.png", Image.fromarray(wide), "PNG", wanted=np.repeat(pixels[..., 1:2], 3, axis=2))


def main() -> int:
    into = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    pixels = picture(HEIGHT, WIDTH, 1)
    add("pixels", pixels)
    blurs(pixels)
    resizes(pixels)
    decodes(pixels)
    with open(os.path.join(into, "kernels.bin"), "wb") as file:
        for name, values in entries:
            kind = {"uint8": b"B", "float32": b"f"}[str(values.dtype)]
            file.write(struct.pack("<I", len(name)) + name.encode() + kind + struct.pack("<I", values.ndim))
            file.write(struct.pack(f"<{values.ndim}I", *values.shape) + values.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
