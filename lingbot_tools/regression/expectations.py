"""A folder of expectations: one session, how it is varied, and what must come out.

session.json            size, keys per chunk, prompt, seed, shift, intrinsics of the session
image.png               its picture
session_<how>.safetensors   outputs; <how> is `full`, or any of window<N>_sink<M>, seed<S>,
                        shift<F>, prompt<I>, joined by _
text_prompts.json, text.safetensors, schedule.json, control.safetensors,
condition_long.safetensors
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lingbot_triton.options import SessionOptions
from lingbot_triton.world.family import WORLD_FAST
from lingbot_triton.world.geometry import Geometry

CHUNK = WORLD_FAST.chunk_latent_frames

Tensors = dict[str, NDArray[Any]]

_VARIANT = re.compile(
    r"session(?:_full)?(?:_window(?P<kv_window_frames>\d+)_sink(?P<kv_sink_frames>\d+))?"
    r"(?:_seed(?P<seed>\d+))?(?:_shift(?P<shift>\d+(?:\.\d+)?))?(?:_prompt(?P<prompt>\d+))?"
)
"""The groups but the last are options of a session."""


class ExpectationError(ValueError):
    """A folder whose expectations cannot be used."""


@dataclass(frozen=True)
class Variant:
    """One way to play the folder's session; `file` is the stem of what it is compared with."""

    file: str
    options: SessionOptions
    prompt: str


@dataclass(frozen=True)
class Expectations:
    """The folder, its session already read. Pictures and tensors need PIL and safetensors."""

    folder: Path
    session: dict[str, Any]
    keys: list[str]  # pressed in each chunk
    geometry: Geometry

    @classmethod
    def load(cls, folder: Path) -> Expectations:
        """Raises ExpectationError where session.json cannot be used."""
        session = _read_json(folder / "session.json")
        try:
            keys = ["".join(pressed) for pressed in session["keys_per_chunk"]]
            geometry = Geometry(int(session["height"]), int(session["width"]))
            session["prompt"], session["seed"]
        except (KeyError, TypeError) as error:
            raise ExpectationError(f"{folder}/session.json lacks {error}") from None
        if (frames := session.get("chunk_size", CHUNK)) != CHUNK:
            raise ExpectationError(
                f"{folder}/session.json has chunks of {frames} latent frames, not {CHUNK}"
            )
        return cls(folder, session, keys, geometry)

    @property
    def picture(self) -> NDArray[np.uint8]:
        """The session's first picture [H, W, 3]; raises OSError where there is none."""
        from PIL import Image

        return np.array(Image.open(self.picture_file).convert("RGB"))

    @property
    def picture_file(self) -> Path:
        return self.folder / str(self.session.get("image", "image.png"))

    @property
    def size(self) -> dict[str, int]:
        """Height and width of the frames, as stages take them."""
        return {"height": self.geometry.height, "width": self.geometry.width}

    def tensors(self, stem: str) -> Tensors | None:
        """The tensors of <stem>.safetensors, None where there is no such file."""
        from safetensors.numpy import load_file

        path = self.folder / f"{stem}.safetensors"
        return load_file(path) if path.is_file() else None

    def json(self, stem: str) -> Any:
        """The content of <stem>.json, None where there is no such file."""
        path = self.folder / f"{stem}.json"
        return _read_json(path) if path.is_file() else None

    @property
    def options(self) -> SessionOptions:
        """The session's options, unvaried: every option that session.json names."""
        known = set(SessionOptions.model_fields)
        options = {name: value for name, value in self.session.items() if name in known}
        return SessionOptions.parse(json.dumps({**options, "chunk_count": len(self.keys)}))

    @property
    def full(self) -> Variant:
        """The session, unvaried."""
        return Variant("session_full", self.options, str(self.session["prompt"]))

    def variants(self) -> tuple[list[Variant], list[str]]:
        """The variants there are files for, the full session first; names of unknown files."""
        known, unknown = [], []
        for path in sorted(self.folder.glob("session_*.safetensors")):
            if match := _VARIANT.fullmatch(path.stem):
                known.append(self._variant(path.stem, match))
            else:
                unknown.append(path.name)
        return sorted(known, key=lambda variant: variant.file != "session_full"), unknown

    def _variant(self, stem: str, match: re.Match[str]) -> Variant:
        changes: dict[str, Any] = {
            name: float(number) if name == "shift" else int(number)
            for name, number in match.groupdict().items()
            if number
        }
        prompt, index = self.full.prompt, changes.pop("prompt", None)
        if index is not None:
            prompts = self.json("text_prompts") or []
            if index >= len(prompts):
                raise ExpectationError(
                    f"{stem} needs prompt {index}; text_prompts.json has {len(prompts)}"
                )
            prompt = str(prompts[index])
        return Variant(stem, self.options.replace(**changes), prompt)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExpectationError(f"{path} cannot be read: {error}") from None
