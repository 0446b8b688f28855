"""Publishing weights: a folder that vLLM and transformers load, whole, checksummed, then the record (G9).

A step publishes once. A trainer that was killed between the record and its checkpoint comes to the same step
again, with the same weights, and finds the version there. Where they come out otherwise, as on a GPU, they
are another version in another folder: what is published never changes. Which folders are kept follows from
the log: a run that goes on from an older checkpoint has lower steps than those it leaves behind.
"""

import hashlib
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
from headrace.streams.client.resource_versions import ResourceVersions
from headrace.streams.client.resources import read_resources
from headrace.trainer.folders import draft_folder, finish, remove_unfinished

PREFIX = "step-"
_MAX_SHARD_BYTES = 4 * 1024**3
_NOT_COPIED = (
    "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pth", ".*",
)  # fmt: skip
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
        """`base` is the model folder whose configuration and tokenizer go with the weights.

        Nobody else may be writing to `folder`; versions of other names may lie there.
        """
        self._publisher = publisher
        self._name = name
        self._run_id = run_id
        self._base = base
        self._folder = folder
        self._keep = keep
        self._dtype = dtype
        if folder.exists():
            remove_unfinished(folder)

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
        target = self._write(weights, step)
        known = read_resources(self._publisher.settings, self._publisher.codec)
        version = self._published(known, step, target) or publish_resource(
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
        self._remove_old(known, version)
        return version

    def _write(self, weights: Mapping[str, torch.Tensor], step: int) -> Path:
        """The folder that has them: its name says what is in it."""
        with draft_folder(self._folder, f"{PREFIX}{step:08d}") as draft:
            self._fill(weights, draft)
            manifest = manifest_of(draft)
            target = self._folder / f"{PREFIX}{step:08d}-{_digest(manifest)}"
            if not target.exists():
                finish(draft, target)
            elif manifest_of(target) != manifest:
                log.warning("weights on the disk have changed; they are written again", path=str(target))
                shutil.rmtree(target)
                finish(draft, target)
        return target

    def _fill(self, weights: Mapping[str, torch.Tensor], draft: Path) -> None:
        shutil.copytree(self._base, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        tensors = {
            name: tensor.to(self._dtype or tensor.dtype).contiguous() for name, tensor in weights.items()
        }
        save_sharded(tensors, draft)

    def _published(self, known: ResourceVersions, step: int, target: Path) -> ResourceVersion | None:
        """The newest version, if it is of this very run, step and content."""
        if self._name not in known.names():
            return None
        newest = known.pinned(self._name, max(known.versions_of(self._name)))
        is_ours = newest.metadata.get(_RUN) == self._run_id and newest.metadata.get(_STEP) == str(step)
        return newest if is_ours and newest.uri == target.resolve().as_uri() else None

    def _remove_old(self, known: ResourceVersions, newest: ResourceVersion) -> None:
        """Keep the last versions of this name, and those of other names."""
        kept = {newest.uri}
        for name in known.names():
            numbers = sorted(known.versions_of(name))
            if name == self._name:
                numbers = [number for number in numbers if number < newest.version]
                numbers = numbers[max(len(numbers) - self._keep + 1, 0) :]
            kept |= {known.pinned(name, number).uri for number in numbers}
        for path in self._folder.glob(f"{PREFIX}*"):
            if path.is_dir() and path.resolve().as_uri() not in kept:
                shutil.rmtree(path)
                log.info("weights removed", path=str(path))


def save_sharded(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """As transformers has them: one file, or several and an index."""
    from huggingface_hub import save_torch_state_dict  # noqa: PLC0415  half a second

    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if num_bytes <= _MAX_SHARD_BYTES:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    save_torch_state_dict(dict(tensors), folder, max_shard_size=_MAX_SHARD_BYTES)


def _digest(manifest: Mapping[str, str]) -> str:
    lines = "".join(f"{name} {checksum}\n" for name, checksum in sorted(manifest.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]
