"""The harvested network of a run, written to a file that loads without esper."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.kasmina.attach.running import evaluating
from esper.leyline.errors import ConfigError, HarvestError, RunError, unknown
from esper.leyline.files import replace_file
from esper.simic.growth.config import ControllerRunConfig
from esper.simic.plugins import load_plugins
from esper.simic.runs.configs import read_config
from esper.tolaria.storage.checkpoint import CheckpointStore
from esper.tolaria.storage.runs import read_run
from esper.tolaria.tasks import get as get_task

TOLERANCE = 1e-5
"""Largest difference, relative to the largest output, between the network and what was written of it."""


def harvest_of_run(path: Path, host: int | None = None) -> tuple[nn.Module, Tensor, int]:
    """The network of one host at the run's last checkpoint, an example input for it, and which host it is.

    host: its number; by default the one with the best val accuracy at the end of its budget, else the first.
    """
    info = read_run(path)
    config = read_config(path / "config.toml")
    if not isinstance(config, ControllerRunConfig):
        raise RunError(f"the run {path} holds no grown network; expected a run of hosts, from esper train heuristic")
    checkpoint = CheckpointStore(path / "checkpoints", run=info.id).latest()
    if checkpoint is None:
        raise RunError(f"the run {path} has no checkpoint yet; there is no network to export")
    state = checkpoint.state["work"]
    hosts = state["hosts"][: config.hosts]
    if host is None:
        host = max(range(len(hosts)), key=lambda i: hosts[i]["course"]["result"]["val_accuracy"] if hosts[i]["course"]["result"] else -1.0)
    if not 0 <= host < len(hosts):
        raise ConfigError(f"the run {path} has the hosts 0 to {len(hosts) - 1}, found {host}")
    load_plugins(config.plugins)
    task = get_task(config.task)
    net, slots, example = task.build_host(config.member_for(task.family, config.seed + host), state["classes"], config.seed + host)
    model = Growable(net, slots, example)
    saved = hosts[host]["host"]
    model.load_state_dict(saved["model"])
    for name, value in saved["harvest_norms"].items():
        model.get_buffer(name).copy_(value)
    return model.harvest().eval(), _varied(example, state["classes"]), host


def check_target(target: Path, run: Path | None = None) -> None:
    """Raise ConfigError where a network must not be written: over anything but a plain file, or among the files of the run itself."""
    # os.path answers for any name; pathlib raises for one that is too long, which `write` tells of.
    if os.path.islink(target) or (os.path.exists(target) and not os.path.isfile(target)):
        kind = "a link" if os.path.islink(target) else "a folder" if os.path.isdir(target) else "no plain file"
        raise ConfigError(f"{target} is {kind}; a network is written to a new file, or over a plain one")
    if run is not None and run.resolve() in target.resolve().parents and (run / "export").resolve() not in target.resolve().parents:
        raise ConfigError(f"{target} lies among the files of the run; write to another folder, or to {run / 'export'}")


def _varied(example: Tensor, classes: int) -> Tensor:
    """Inputs like the example, with other values than its zeros, which many a wrong network would get right."""
    stream = torch.Generator().manual_seed(0)
    if example.is_floating_point():
        return torch.randn(example.shape, generator=stream)
    return torch.randint(classes, example.shape, generator=stream)


def write(network: nn.Module, example: Tensor, target: Path, format: str, check: bool) -> str:
    """Write the network to `target` and return the lines that load it. With `check`, load what is written and compare outputs first."""
    formats: dict[str, tuple[Callable[[nn.Module, Tensor], bytes], Callable[[bytes, Tensor], Tensor], str]] = {
        "module": (_as_module, _run_module, 'network = torch.load("{file}", weights_only=False)\noutput = network(x)'),
        "pt2": (_as_pt2, _run_pt2, 'network = torch.export.load("{file}").module()\noutput = network(x)'),
        "onnx": (
            _as_onnx,
            _run_onnx,
            'session = onnxruntime.InferenceSession("{file}")\noutput = session.run(None, {{"input": x.numpy()}})[0]',
        ),
    }
    if format not in formats:
        raise unknown("format", format, formats)
    check_target(target)
    packed, run, lines = formats[format]
    content = packed(network, example)
    if check:
        # The second batch has another size than the one that the network was exported with.
        for batch in (example, torch.cat([example.flip(0), example[:1]])):
            _compare(network, run, content, batch)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content)
    except OSError as error:
        raise HarvestError(f"the network cannot be written to {target}: {error.strerror}") from error
    imports = "import onnxruntime" if format == "onnx" else "import torch"
    return f"{imports}\n\n" + lines.format(file=target.name)


def _compare(network: nn.Module, run: Callable[[bytes, Tensor], Tensor], content: bytes, batch: Tensor) -> None:
    with evaluating(network):
        expected = network(batch)
        found = run(content, batch)
    difference = float((expected - found).abs().max()) / max(1.0, float(expected.abs().max()))
    if not difference <= TOLERANCE:
        raise HarvestError(f"what was exported gives outputs that differ by {difference:.2e} from the network's; nothing was written")


def _as_module(network: nn.Module, example: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(network, buffer)
    return buffer.getvalue()


def _run_module(content: bytes, example: Tensor) -> Tensor:
    # The pickle was made by this very call; a module of torch's own classes can only be saved as one.
    network: Any = torch.load(io.BytesIO(content), weights_only=False)
    return network(example)


def _as_pt2(network: nn.Module, example: Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(network, (_batch(example),), dynamic_shapes=_any_batch()), buffer)
    return buffer.getvalue()


def _run_pt2(content: bytes, example: Tensor) -> Tensor:
    return torch.export.load(io.BytesIO(content)).module()(example)


def _as_onnx(network: nn.Module, example: Tensor) -> bytes:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError('ONNX export needs onnx and onnxscript; install them with: pip install "esper-lite[onnx]"') from error
    with _hushed():
        program = torch.onnx.export(
            network,
            (_batch(example),),
            dynamo=True,
            input_names=["input"],
            output_names=["output"],
            dynamic_shapes=_any_batch(),
            verbose=False,
        )
    assert program is not None, "an export without a file returns its program"
    return bytes(program.model_proto.SerializeToString())


def _run_onnx(content: bytes, example: Tensor) -> Tensor:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError('checking ONNX needs onnxruntime; install it with: pip install "esper-lite[onnx]"') from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"input": example.numpy()})[0])


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what the exporter says about packages that are not installed, and about its own code."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _batch(example: Tensor) -> Tensor:
    # An example of one sample would be taken for a network that handles only one.
    return example if len(example) > 1 else torch.cat([example, example])


def _any_batch() -> tuple[dict[int, Any], ...]:
    return ({0: torch.export.Dim("batch")},)
