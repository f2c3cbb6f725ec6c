"""Latent to frames."""

from lingbot_triton.triton.stage_model import SessionStageModel


class TritonPythonModel(SessionStageModel):
    stage = "decode"
