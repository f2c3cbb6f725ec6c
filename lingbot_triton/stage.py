"""The stages of the service: one record each, from which every list of stages follows.

A stage is a Triton model that the orchestrator calls, and a class that holds its weights. Adding
one means a record here, its code in `stages/` and `simulated/`, and its call in the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingbot_triton.protocol import FRAMES, ORCHESTRATOR, PROMPT, SLOTS, ModelSpec, TensorSpec

CONTEXT = TensorSpec("context", "FP32", (-1, -1), "prompt embedding [tokens, text width]")
PICTURE = TensorSpec("picture", "UINT8", (-1, -1, 3), "decoded RGB picture [h, w, 3]; op open")
CONDITION = TensorSpec(
    "condition", "FP32", (20, -1, -1, -1), "4 mask + 16 latent channels [20, frames, h, w]"
)
STEADY = TensorSpec("steady", "BOOL", (1,), "true when every later condition equals this one")
CAMERA_POSES = TensorSpec("poses", "FP64", (-1, 4, 4), "camera-to-world, one per latent frame")
LATENT = TensorSpec("latent", "FP32", (16, -1, -1, -1), "clean latent [16, frames, h, w]")
ABOUT = TensorSpec("about", "BYTES", (1,), "JSON: what computes; answers op open")
STEP_MS = TensorSpec("step_ms", "FP32", (-1,), "milliseconds of each denoising step")
FLOWS = TensorSpec(
    "flows", "FP32", (-1, 16, -1, -1, -1), "network output of each step; with parameter record"
)

IDLE_SECONDS = 3600
"""After so long without a request Triton gives a worker's sequence slot away."""


@dataclass(frozen=True)
class Operation:
    """One kind of call that the orchestrator makes to a stage; its name is the parameter `op`."""

    name: str
    label: str = ""
    """Name of its span and value of the metric's label; empty where the call is not timed."""
    outputs: tuple[TensorSpec, ...] = ()
    passed_on: bool = False
    """Whether the outputs go on to another model or the client as they are, without being copied
    out of Triton's shared memory."""


CLOSE = Operation("close")


@dataclass(frozen=True, kw_only=True)
class Stage(ModelSpec):
    """A model that the orchestrator calls."""

    operations: tuple[Operation, ...]
    implementation: str
    """Module and class of the stage with weights."""
    simulated: str
    """Module and class of the stage that only takes time."""
    release_order: int = 0
    """Place in the order in which a session's stages are released, the last of the path first."""

    @property
    def has_sessions(self) -> bool:
        """Whether the stage keeps a state for each session."""
        return bool(self.sequence_slots)

    def operation(self, name: str) -> Operation:
        """The operation called `name`; raises KeyError that lists the known ones."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        known = ", ".join(operation.name for operation in self.operations)
        raise KeyError(f"{self.name} has no operation {name!r}; known: {known}")


PROMPT_STAGE = Stage(
    name="prompt",
    description="text to embedding (umT5)",
    inputs=(PROMPT,),
    outputs=(CONTEXT,),
    operations=(Operation("encode", "prompt", (CONTEXT,), passed_on=True),),
    implementation="lingbot_triton.stages.prompt:PromptStage",
    simulated="lingbot_triton.simulated.stages:SimulatedPrompt",
)
CONDITION_STAGE = Stage(
    name="condition",
    description="picture and position to condition (VAE encoder)",
    inputs=(PICTURE,),
    outputs=(CONDITION, STEADY),
    operations=(
        Operation("open", "open condition"),
        Operation("step", "condition", (CONDITION, STEADY)),
        CLOSE,
    ),
    implementation="lingbot_triton.stages.condition:ConditionStage",
    simulated="lingbot_triton.simulated.stages:SimulatedCondition",
    release_order=3,
    sequence_slots=SLOTS,
    idle_seconds=IDLE_SECONDS,
)
DENOISE_STAGE = Stage(
    name="denoise",
    description="condition and control to latent (causal DiT)",
    inputs=(CONTEXT, CONDITION, CAMERA_POSES),
    outputs=(LATENT, STEP_MS, FLOWS, ABOUT),
    operations=(
        Operation("open", "open denoise", (ABOUT,)),
        Operation("step", "denoise", (LATENT, STEP_MS)),
        Operation("commit", "commit"),
        CLOSE,
    ),
    implementation="lingbot_triton.stages.denoise:DenoiseStage",
    simulated="lingbot_triton.simulated.stages:SimulatedDenoise",
    release_order=2,
    sequence_slots=SLOTS,
    idle_seconds=IDLE_SECONDS,
)
DECODE_STAGE = Stage(
    name="decode",
    description="latent to frames (VAE decoder)",
    inputs=(LATENT,),
    outputs=(FRAMES,),
    operations=(
        Operation("open", "open decode"),
        Operation("step", "decode", (FRAMES,), passed_on=True),
        CLOSE,
    ),
    implementation="lingbot_triton.stages.decode:DecodeStage",
    simulated="lingbot_triton.simulated.stages:SimulatedDecode",
    release_order=1,
    sequence_slots=SLOTS,
    idle_seconds=IDLE_SECONDS,
)

STAGES = (PROMPT_STAGE, CONDITION_STAGE, DENOISE_STAGE, DECODE_STAGE)
SESSION_STAGES = tuple(stage for stage in STAGES if stage.has_sessions)
MODELS: tuple[ModelSpec, ...] = (ORCHESTRATOR, *STAGES)
TIMED_CALLS = tuple(
    operation.label for stage in STAGES for operation in stage.operations if operation.label
)
"""Labels of all calls to stages whose time is measured."""


def find_stage(name: str) -> Stage:
    """The stage called `name`; raises KeyError that lists the known ones."""
    for stage in STAGES:
        if stage.name == name:
            return stage
    raise KeyError(f"no stage is called {name!r}; known: {', '.join(s.name for s in STAGES)}")
