"""Text to embedding."""

from lingbot_triton.triton.stage_model import PromptModel


class TritonPythonModel(PromptModel):
    pass
