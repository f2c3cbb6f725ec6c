"""Named ways to sample: which steps, and how far back the network looks.

A preset's steps belong to the server; its shift and window are the defaults of a session's options.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingbot_triton.options import SessionOptions


@dataclass(frozen=True)
class Preset:
    """One way to sample; the defaults are what the network was released with."""

    name: str
    description: str
    step_indices: tuple[int, ...] = (0, 179, 358, 679)
    """Steps of the 1000-step schedule, in order, at which a chunk is denoised."""
    shift: float = 10.0
    kv_window_frames: int | None = None
    kv_sink_frames: int = 0
    lossy: bool = False
    """Whether it gives up quality that the released steps have."""

    def options(self, max_area: int) -> SessionOptions:
        """What a session's options are where the client leaves them out."""
        return SessionOptions(
            shift=self.shift,
            kv_window_frames=self.kv_window_frames,
            kv_sink_frames=self.kv_sink_frames,
            max_area=max_area,
        )


FAST = Preset("fast", "as released: four steps, and every frame of the session is kept")

PRESETS = {
    preset.name: preset
    for preset in (
        FAST,
        Preset(
            "window15",
            "the released steps; the newest 12 latent frames and the first 3 are kept, so that "
            "sessions may be endless",
            kv_window_frames=15,
            kv_sink_frames=3,
        ),
        Preset(
            "one-step",
            "one step instead of four: others report it near parity at 2.2 to 2.6 times the speed",
            step_indices=(0,),
            lossy=True,
        ),
    )
}


def find_preset(name: str) -> Preset:
    """The preset called `name`; raises ValueError that lists the known ones."""
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; it must be one of {', '.join(PRESETS)}")
    return PRESETS[name]
