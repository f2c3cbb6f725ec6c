"""Builds a wheel of SageAttention, from its source in the working directory, without a GPU.

    TORCH_CUDA_ARCH_LIST="8.9;9.0" python build-sageattention.py FOLDER

Some of its versions read TORCH_CUDA_ARCH_LIST; the others ask torch which GPUs there are, and
here get the ones that are named as an answer.
"""

import os
import runpy
import sys

import torch

capabilities = [
    tuple(map(int, text.split("."))) for text in os.environ["TORCH_CUDA_ARCH_LIST"].split(";")
]
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(capabilities)
torch.cuda.get_device_capability = lambda device=0: capabilities[device or 0]
sys.argv = ["setup.py", "bdist_wheel", "--dist-dir", sys.argv[1]]
sys.path.insert(0, os.getcwd())
runpy.run_path("setup.py", run_name="__main__")
