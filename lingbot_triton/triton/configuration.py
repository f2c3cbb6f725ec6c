"""Settings as a model instance receives them from Triton."""

from __future__ import annotations

import json

from lingbot_triton.settings import Settings


def instance_settings(args: dict[str, str]) -> Settings:
    """Settings from a model's configuration and the environment, on the instance's own GPU."""
    parameters = json.loads(args["model_config"]).get("parameters", {})
    texts = {name: value["string_value"] for name, value in parameters.items()}
    settings = Settings.load(texts)
    if args.get("model_instance_kind") == "GPU":
        return settings.replace(device=f"cuda:{args['model_instance_device_id']}")
    return settings
