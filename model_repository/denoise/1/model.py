"""Condition and control to latent."""

from lingbot_triton.triton.stage_model import SessionStageModel


class TritonPythonModel(SessionStageModel):
    stage = "denoise"
