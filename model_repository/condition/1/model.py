"""Picture and position to condition."""

from lingbot_triton.triton.stage_model import SessionStageModel


class TritonPythonModel(SessionStageModel):
    stage = "condition"
