"""LingBot-World-Fast served from NVIDIA Triton Inference Server."""

__version__ = "0.1.0"
