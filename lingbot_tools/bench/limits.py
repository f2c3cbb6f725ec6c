"""The shortest times a cost profile allows, by what a variant leaves on the control's path."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lingbot_client.figures import SECONDS_PER_CHUNK

from lingbot_triton.simulated.profiles import CostProfile
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import video_frames

CHUNK = WORLD_FAST.chunk_latent_frames
CHUNK_FRAMES = video_frames(CHUNK, first=False)


@dataclass(frozen=True)
class Variant:
    """One way of serving: what is done ahead of a control, and what after its frames."""

    name: str
    text: str
    prefetch_depth: int
    commit_inline: bool
    decode_frames: int

    @property
    def options(self) -> dict[str, int | bool]:
        """Session options of the variant."""
        names = ("prefetch_depth", "commit_inline", "decode_frames")
        return {name: getattr(self, name) for name in names}


INLINE = Variant("inline", "everything in line, whole chunks", 0, True, CHUNK)
PREFETCH = Variant("prefetch", "conditions prefetched, no more", 2, True, CHUNK)
ALL = Variant("all", "prefetch, commit beside decoding, frames as decoded", 2, False, 1)
VARIANTS = (INLINE, PREFETCH, ALL)


@dataclass(frozen=True)
class Scenario:
    """How the person acts."""

    name: str
    description: str
    think: bool = False
    """Whether the person takes time between the last frames and the next control."""
    ahead: bool = False
    """Whether the next control is sent while a chunk is made."""


THINKING = Scenario("thinking", "closed loop, with time to think before each control", think=True)
CLOSED = Scenario("closed", "closed loop: the next control leaves when the last frames came")
AHEAD = Scenario("ahead", "each control is sent one chunk ahead", ahead=True)
SCENARIOS = (THINKING, CLOSED, AHEAD)


def limits(
    profile: CostProfile, variant: Variant, scenario: Scenario, think: float
) -> dict[str, float]:
    """The means that `variant` could reach, by fields of `Figures`; `think` is in milliseconds.

    They are those of a chunk in the steady state, if nothing cost more than the profile says. In a
    closed loop a control may have to wait for the chunk before it to be committed. A control that
    is sent ahead waits for all of that chunk, so its latency says little and has no limit.
    """
    condition = 0.0 if variant.prefetch_depth else profile.condition
    commit = profile.commit if variant.commit_inline else 0.0
    decoding = profile.decode_per_latent_frame
    lane = condition + profile.denoise + profile.commit
    """How long a chunk keeps the next one from being denoised."""
    if scenario.ahead:
        period = busy = max(lane, CHUNK * decoding, profile.condition)
        first = whole = math.nan
    else:
        pause = think if scenario.think else 0.0
        alone = condition + profile.denoise + commit + CHUNK * decoding
        # Prefetched conditions are made one after another, one a chunk.
        slowest = max(lane, profile.condition) if variant.prefetch_depth else lane
        whole = busy = max(alone, slowest - pause)
        first = whole - (CHUNK - variant.decode_frames) * decoding
        period = whole + pause
    return {
        "first_frames_server": first,
        "first_frames_client": first,
        "whole_chunk_server": whole,
        "whole_chunk_client": whole,
        "period": period,
        "compute_fps": CHUNK_FRAMES / busy * 1000 if busy else math.nan,
        "real_time_factor": period / 1000 / SECONDS_PER_CHUNK,
    }
