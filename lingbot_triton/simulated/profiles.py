"""Named costs of the stages, in milliseconds at 480x832, from published measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostProfile:
    """What each stage's work on one chunk of 3 latent frames takes, in milliseconds."""

    name: str
    description: str
    condition: float
    denoise_steps: tuple[float, ...]
    commit: float
    decode_per_latent_frame: float

    @property
    def denoise(self) -> float:
        return sum(self.denoise_steps)

    def scaled(self, factor: float) -> CostProfile:
        """The same profile with every cost multiplied by `factor`."""
        return CostProfile(
            self.name,
            self.description,
            self.condition * factor,
            tuple(step * factor for step in self.denoise_steps),
            self.commit * factor,
            self.decode_per_latent_frame * factor,
        )


PROFILES = {
    profile.name: profile
    for profile in (
        CostProfile(
            "seed-4xh100",
            "adds up to TeleFuser's 1801 ms a chunk on four H100s with everything in line, "
            "and 1447.6 ms with the condition prefetched",
            condition=353.4,
            denoise_steps=(252.0, 252.0, 252.0, 252.0),
            commit=247.0,
            decode_per_latent_frame=64.2,
        ),
    )
}


def find_profile(name: str, scale: float) -> CostProfile:
    """The profile called `name`, scaled; raises ValueError that lists the known names."""
    if name not in PROFILES:
        raise ValueError(f"no cost profile {name!r}; known: {', '.join(sorted(PROFILES))}")
    return PROFILES[name].scaled(scale)
