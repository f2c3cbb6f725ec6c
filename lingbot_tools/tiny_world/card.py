"""What a training leaves to be read: the checkpoint's card, and the loss curves."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lingbot_tools.tiny_world.loop import Reached, Work
from lingbot_tools.tiny_world.scene import COLOURS, FLOORS, KINDS, SKIES

_CARD = """\
# A tiny world

Weights of LingBot-World-Fast's architecture at a very small size, in the released ones' layout,
trained by `scripts/train-tiny` on a CPU on films of a procedural world. They show what the
network, the server and the client do with keys; they know nothing of real pictures.

- Frames of 96×64 pixels at 16 per second. Start from a picture of the world:
  `lingbot_tools.tiny_world.renderer`, scenes below number 1,000,000 were not trained on.
- Prompts are like `A hall with red and teal pillars on a striped blue floor at sunset.`
  Kinds: {kinds}. Floors: {floors}. Colours: {colours}. Skies: {skies}. Other words all read alike.
- Keys as everywhere here, at the default steps: 0.05 forward and 2° of turn a frame.
- Transformer: width {dim}, {layers} layers, {heads} heads. VAE: base width {base_dim}. Stored as
  float16; computed as the settings say.
- Licence: Apache-2.0, like the project; nothing of the released weights is in here.

## Limits

What a picture shows turns and moves with the keys for some chunks, then blurs: what comes into view
is a guess at its mean, and each chunk goes on from the one before. Long sessions end in sky, floor
and fog; scenes at night are the first to. The measures below say how far this goes.

## Training

| stage | steps | minutes |
|---|---|---|
{stages}

Seed {seed}. Films for the transformer: {films}, of 81 frames each.
{measures}"""

_MEASURES = """
## Measured

By `scripts/eval-tiny`, on {scenes} scenes that were not trained on, against the renderer:

| measure | value | wanted | |
|---|---|---|---|
{bars}
"""


def write_card(checkpoint: Path, work: Work) -> None:
    """README.md in the checkpoint's folder, with the newest measurements there are."""
    plan, films = work.read_json("plan.json"), work.read_json("films.json")
    evaluation = work.read_json("evaluation.json")
    bars = [
        "| {name} | {shown} | {wanted} | {} |".format("met" if bar["met"] else "NOT MET", **bar)
        for bar in (evaluation or {"bars": ()})["bars"]
    ]
    stages = (f"| {name} | {at.step} | {at.seconds / 60:.0f} |" for name, at in _begun(work))
    text = _CARD.format(
        kinds=", ".join(KINDS),
        floors=", ".join(FLOORS),
        colours=", ".join(COLOURS),
        skies=", ".join(SKIES),
        stages="\n".join(stages),
        films=films["films"] if films else 0,
        measures=_MEASURES.format(scenes=evaluation["scenes"], bars="\n".join(bars))
        if bars
        else "",
        seed=plan["seed"],
        base_dim=plan["vae"]["base_dim"],
        **plan["network"],
    )
    (checkpoint / "README.md").write_text(text)


def draw_curves(work: Work, path: Path) -> None:
    """One row per stage that has begun; psnr has an axis of its own."""
    if not (begun := _begun(work)):
        return
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(8, 2.4 * len(begun)), layout="constrained")
        rows = figure.subplots(len(begun), squeeze=False)[:, 0]
        for axes, (name, at) in zip(rows, begun, strict=True):
            axes.set(title=f"{name}: {at.step} steps, {at.seconds / 60:.0f} min", yscale="log")
            axes.grid(alpha=0.3)
            for loss, points in at.losses.items():
                if loss not in ("psnr", "kl") and points:
                    axes.plot(*zip(*points, strict=True), label=loss, linewidth=0.8)
            if axes.lines:
                axes.legend(loc="upper right")
            if psnr := at.losses.get("psnr"):
                right = axes.twinx()
                right.plot(*zip(*psnr, strict=True), color="grey", linewidth=0.8)
                right.set_ylabel("PSNR, dB")
        figure.savefig(path, dpi=120)


def _begun(work: Work) -> list[tuple[str, Reached]]:
    return [(name, kept[0]) for name in ("vae", "dit") if (kept := work.load(name)) is not None]
