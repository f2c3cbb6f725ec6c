"""Sessions, cursors, prefetch window and order; calls the other models."""

from lingbot_triton.triton.orchestrator_model import OrchestratorModel


class TritonPythonModel(OrchestratorModel):
    pass
