"""Tests that share servers and fixtures run in one process, however many processes there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ["tests/unit/client/test_protocol.py", "tests/unit/orchestrator/test_picture.py"]


def test_the_tests_of_a_group_run_in_one_process() -> None:
    options = ["-v", "-n", "2", "--dist", "loadscope", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *FILES]
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("PYTEST")}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout
    processes = defaultdict(set)
    for process, file in re.findall(r"\[(gw\d)\].* PASSED (\S+)::", run.stdout):
        processes[file].add(process)
    assert {file: len(names) for file, names in processes.items()} == dict.fromkeys(FILES, 1)
