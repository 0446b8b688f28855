"""Publishing weights: a folder that vLLM and transformers load, whole, checksummed, then the record (G9).

A step publishes once. A trainer that was killed between the record and its checkpoint comes to the same step
again, with the same weights, and finds the version there.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog
import torch
from safetensors.torch import save_file

from headrace.schemas.records import ResourceVersion
from headrace.streams.client.manifest import manifest_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resource_publishing import publish_resource
from headrace.streams.client.resources import read_resources
from headrace.trainer.folders import keep_last, numbered, whole_folder

PREFIX = "step-"
_MAX_SHARD_BYTES = 4 * 1024**3
_NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", ".*")
_RUN, _STEP = "run_id", "step"

log = structlog.get_logger(__name__)


class Weights(Protocol):
    """What is published."""

    def hf_state_dict(self) -> Mapping[str, torch.Tensor] | None:
        """All weights by their names in transformers, on the CPU; on the main rank only."""


class WeightsPublisher:
    """On the main rank."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        name: str,
        run_id: str,
        base: Path,
        folder: Path,
        keep: int,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`base` is the model folder whose configuration and tokenizer go with the weights."""
        self._publisher = publisher
        self._name = name
        self._run_id = run_id
        self._base = base
        self._folder = folder
        self._keep = keep
        self._dtype = dtype

    def publish(
        self,
        weights: Mapping[str, torch.Tensor],
        step: int,
        *,
        trained_on: Sequence[str],
        offsets: Mapping[str, int],
        parent_version: int | None,
        metadata: Mapping[str, str],
    ) -> ResourceVersion:
        """The version, known to be in the log."""
        target = self._folder / f"{PREFIX}{step:08d}"
        manifest = self._write(weights, target)
        version = self._published(step, manifest) or publish_resource(
            self._publisher,
            self._name,
            "weights",
            files=target,
            trained_on=trained_on,
            consumed_offsets=offsets,
            parent_version=parent_version,
            metadata={**metadata, _RUN: self._run_id, _STEP: str(step)},
        )
        log.info("weights published", resource=self._name, version=version.version, step=step)
        for old in keep_last(self._folder, PREFIX, self._keep):
            log.info("weights removed", step=old)
        return version

    def _write(self, weights: Mapping[str, torch.Tensor], target: Path) -> Mapping[str, str]:
        """The manifest of what is there now."""
        if not target.exists():
            with whole_folder(target) as draft:
                self._fill(weights, draft)
            return manifest_of(target)
        # We were killed after this step was written: the same again is left alone, engines may be reading it.
        again = target.with_name(f".again-{target.name}")
        shutil.rmtree(again, ignore_errors=True)
        with whole_folder(again) as draft:
            self._fill(weights, draft)
        manifest = manifest_of(again)
        if manifest_of(target) == manifest:
            shutil.rmtree(again)
        else:
            log.warning("weights of a step came out differently the second time", path=str(target))
            shutil.rmtree(target)
            again.rename(target)
        return manifest

    def _fill(self, weights: Mapping[str, torch.Tensor], draft: Path) -> None:
        shutil.copytree(self._base, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        tensors = {
            name: tensor.to(self._dtype or tensor.dtype).contiguous() for name, tensor in weights.items()
        }
        save_sharded(tensors, draft)

    def _published(self, step: int, manifest: Mapping[str, str]) -> ResourceVersion | None:
        """A version of this very run, step and content, if there is one."""
        versions = read_resources(self._publisher.settings, self._publisher.codec)
        if self._name not in versions.names():
            return None
        for number in reversed(versions.versions_of(self._name)):
            found = versions.pinned(self._name, number)
            is_ours = found.metadata.get(_RUN) == self._run_id and found.metadata.get(_STEP) == str(step)
            if is_ours and found.manifest == manifest:
                return found
        return None


def save_sharded(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """As transformers has them: one file, or several and an index."""
    from huggingface_hub import save_torch_state_dict  # noqa: PLC0415  half a second

    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if num_bytes <= _MAX_SHARD_BYTES:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    save_torch_state_dict(dict(tensors), folder, max_shard_size=_MAX_SHARD_BYTES)


def published_steps(folder: Path) -> Mapping[int, Path]:
    """What lies there, by step."""
    return numbered(folder, PREFIX)
