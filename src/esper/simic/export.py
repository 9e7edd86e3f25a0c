"""The harvested network of a run, written to a file that loads without esper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina import Growable
from esper.kasmina.probe import evaluating
from esper.leyline.config import load
from esper.leyline.errors import ConfigError, HarvestError, RunError, unknown
from esper.simic.config import RunConfig
from esper.tolaria.checkpoint import CheckpointStore
from esper.tolaria.runs import read_run
from esper.tolaria.tasks import get as get_task
from esper.tolaria.tasks import load_task_file

TOLERANCE = 1e-5
"""Largest difference, relative to the largest output, between the network and what was written of it."""


def harvest_of_run(path: Path, host: int | None = None) -> tuple[nn.Module, Tensor, int]:
    """The network of one host at the run's last checkpoint, an example input for it, and which host it is.

    host: its number; by default the one with the best val accuracy at the end of its budget, else the first.
    """
    info = read_run(path)
    config = load(RunConfig, path / "config.toml")
    checkpoint = CheckpointStore(path / "checkpoints", run=info.id).latest()
    if checkpoint is None:
        raise RunError(f"the run {path} has no checkpoint yet; there is no network to export")
    state = checkpoint.state["session"]
    plots = state["plots"][: config.hosts]
    if host is None:
        host = max(range(len(plots)), key=lambda i: plots[i]["result"]["val_accuracy"] if plots[i]["result"] else -1.0)
    if not 0 <= host < len(plots):
        raise ConfigError(f"the run {path} has the hosts 0 to {len(plots) - 1}, found {host}")
    for file in config.task_files:
        load_task_file(file)
    task = get_task(config.task)
    net, slots, example = task.build_host(config.member_for(task.family, config.seed + host), state["classes"], config.seed + host)
    model = Growable(net, slots, example)
    model.load_state_dict(plots[host]["host"]["model"])
    return model.harvest().eval(), example, host


def write(network: nn.Module, example: Tensor, target: Path, format: str, check: bool) -> str:
    """Write the network to `target` and return the lines that load it. With `check`, load it again and compare outputs."""
    formats: dict[str, tuple[Callable[[nn.Module, Tensor, Path], None], Callable[[Path, Tensor], Tensor], str]] = {
        "module": (_write_module, _run_module, 'network = torch.load("{file}", weights_only=False)\noutput = network(x)'),
        "pt2": (_write_pt2, _run_pt2, 'network = torch.export.load("{file}").module()\noutput = network(x)'),
        "onnx": (_write_onnx, _run_onnx, 'session = onnxruntime.InferenceSession("{file}")\noutput = session.run(None, {{"input": x}})[0]'),
    }
    if format not in formats:
        raise unknown("format", format, formats)
    writer, runner, lines = formats[format]
    target.parent.mkdir(parents=True, exist_ok=True)
    writer(network, example, target)
    if check:
        with evaluating(network):
            expected = network(example)
            found = runner(target, example)
        difference = float((expected - found).abs().max()) / max(1.0, float(expected.abs().max()))
        if not difference <= TOLERANCE:
            raise HarvestError(f"{target} gives outputs that differ by {difference:.2e} from the network's")
    imports = "import onnxruntime" if format == "onnx" else "import torch"
    return f"{imports}\n\n" + lines.format(file=target.name)


def _write_module(network: nn.Module, example: Tensor, target: Path) -> None:
    torch.save(network, target)


def _run_module(target: Path, example: Tensor) -> Tensor:
    # The file was written by this very call; a module of torch's own classes can only be saved as a pickle.
    network: Any = torch.load(target, weights_only=False)
    return network(example)


def _exported(network: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    # An example of one sample would be taken for a network that handles only one.
    batch = example if len(example) > 1 else torch.cat([example, example])
    return torch.export.export(network, (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def _write_pt2(network: nn.Module, example: Tensor, target: Path) -> None:
    torch.export.save(_exported(network, example), target)


def _run_pt2(target: Path, example: Tensor) -> Tensor:
    return torch.export.load(target).module()(example)


def _write_onnx(network: nn.Module, example: Tensor, target: Path) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError('ONNX export needs onnx and onnxscript; install them with: pip install "esper-lite[onnx]"') from error
    batch = example if len(example) > 1 else torch.cat([example, example])
    torch.onnx.export(
        network,
        (batch,),
        str(target),
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )


def _run_onnx(target: Path, example: Tensor) -> Tensor:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError('checking ONNX needs onnxruntime; install it with: pip install "esper-lite[onnx]"') from error
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"input": example.numpy()})[0])
