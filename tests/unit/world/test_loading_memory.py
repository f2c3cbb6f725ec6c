"""How much memory loading takes: measured, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lingbot_triton.world.config import TransformerConfig
from lingbot_triton.world.dit import WorldTransformer, dtype_of

CONFIG = TransformerConfig(512, 2048, 4, 6, "cam", text_dim=64)
DTYPE = torch.bfloat16
SLACK = 24 * 2**20
"""What Python, torch's thread pools and malloc take besides."""

MEASURE = """
import sys
from pathlib import Path
import torch
from lingbot_triton.world.loading import load_transformer

def memory(name):
    line = next(x for x in open("/proc/self/status") if x.startswith(name))
    return int(line.split()[1]) * 1024

torch.zeros(8) @ torch.zeros(8)
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
network = load_transformer(Path(sys.argv[1]), torch.device("cpu"), torch.bfloat16)
print(memory("VmHWM") - before)
"""


@pytest.fixture
def sharded(tmp_path) -> Path:
    """A float32 checkpoint with a shard for each block and one for the rest."""
    with torch.device("meta"):
        network = WorldTransformer(CONFIG)
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for name, weight in network.named_parameters():
        shard = f"model-{name.split('.')[1] if name.startswith('blocks.') else 'rest'}.safetensors"
        shards.setdefault(shard, {})[name] = torch.ones(weight.shape)
    for shard, weights in shards.items():
        save_file(weights, tmp_path / shard)
    weight_map = {name: shard for shard, weights in shards.items() for name in weights}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": CONFIG.num_heads}))
    return tmp_path


def target_bytes() -> int:
    with torch.device("meta"):
        weights = WorldTransformer(CONFIG).named_parameters()
    return sum(weight.numel() * dtype_of(name, DTYPE).itemsize for name, weight in weights)


def test_loading_holds_one_shard_beside_the_target(sharded):
    shards = [file.stat().st_size for file in sharded.glob("*.safetensors")]
    allowed = max(shards) + target_bytes() + SLACK
    # Whoever has all shards in memory at once is told apart from that.
    assert sum(shards) + target_bytes() > allowed + SLACK
    command = [sys.executable, "-c", MEASURE, str(sharded)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert target_bytes() - SLACK < int(run.stdout) < allowed
