"""Write the bundled example clip: the class map (lossy H.264 and lossless), frames of it in two looks, and their prompts.

python -m streamrender_h3.workflows.nano.make_clip --seed 1001 --look "golden hour"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np
import torch

from .world import COLORS, FPS, LOOKS, Track, WorldLook, prompt_for, render

ASSETS = Path(__file__).resolve().parent.parent / "assets"
SIZE = (768, 1344)
FRAMES = 124
CHANGED, CHANGE_FRAME = "picture_blue_hour.jpg", 64  # of the graph whose look changes on the way; a chunk begins there
SECOND = "picture_blue_hour_start.jpg"  # of the list of looks, frame 0 as the first
LOSSY = {
    "crf": "20",
    "preset": "veryslow",
    "x264-params": "keyint=250:colorprim=bt709:transfer=bt709:colormatrix=bt709",
}
LOSSLESS = {"qp": "0", "preset": "veryslow", "x264-params": "keyint=250"}


def write_video(path: Path, frames: Iterable[np.ndarray], codec: str, pixels: str, options: dict[str, str]) -> None:
    """Encode RGB frames uint8 [H, W, 3] at 24 frames a second; YUV files are BT.709, limited range, and say so."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    yuv = pixels.startswith("yuv")
    with av.open(str(path), "w") as sink:
        stream = cast(av.VideoStream, sink.add_stream(codec, rate=FPS, options=options))
        stream.height, stream.width = SIZE
        stream.pix_fmt = pixels
        stream.time_base = Fraction(1, FPS)
        if yuv:
            context = stream.codec_context
            context.colorspace, context.color_range = Colorspace.ITU709, ColorRange.MPEG
            context.color_primaries, context.color_trc = 1, 1
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if yuv:
                frame = frame.reformat(format=pixels, dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG)
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            sink.mux(stream.encode(frame))
        sink.mux(stream.encode(None))


def make_clip(seed: int, look: WorldLook, folder: Path) -> dict[str, int]:
    """Draw and write all files; returns their sizes in bytes."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    track = Track.from_seed(seed)
    palette = np.array(COLORS, dtype=np.uint8)
    maps = [palette[render(track, None, [number], SIZE)[0][0].numpy()] for number in range(FRAMES)]
    write_video(folder / "semantic_clip.mp4", maps, "libx264", "yuv420p", LOSSY)
    write_video(folder / "semantic_clip_lossless.mp4", maps, "libx264rgb", "rgb24", LOSSLESS)
    evening = WorldLook.named("blue hour", seed)
    for name, light, frame in (("picture.jpg", look, 0), (CHANGED, evening, CHANGE_FRAME), (SECOND, evening, 0)):
        _, picture = render(track, light, [frame], SIZE, dtype=torch.uint8)
        assert picture is not None  # a look was given
        Image.fromarray(picture[0].permute(1, 2, 0).numpy()).save(folder / name, quality=92, subsampling=0)
    prompts = {"prompt.txt": look, "prompt_blue_hour.txt": evening}
    for name, light in prompts.items():
        (folder / name).write_text(prompt_for(track, light, range(0, FRAMES, 12)), encoding="utf-8")
    names = ("semantic_clip.mp4", "semantic_clip_lossless.mp4", "picture.jpg", CHANGED, SECOND, *prompts)
    return {name: (folder / name).stat().st_size for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1001, help="seed of the track and the paints")
    parser.add_argument("--look", choices=tuple(LOOKS), default="golden hour", help="light and weather of the picture")
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder that receives the files")
    arguments = parser.parse_args()
    sizes = make_clip(arguments.seed, WorldLook.named(arguments.look, arguments.seed), arguments.out)
    for name, size in sizes.items():
        print(f"{size:9,d}  {name}")
    print(f"{sum(sizes.values()):9,d}  in all")


if __name__ == "__main__":
    main()
