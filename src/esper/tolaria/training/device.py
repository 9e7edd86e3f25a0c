"""The device that hosts train on, from its name."""

from __future__ import annotations

import torch

from esper.leyline.errors import DeviceError


def device_named(name: str) -> torch.device:
    """The device, or DeviceError for one that is not here, or that hosts do not train on."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"unknown device {name!r}; expected cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} of them, counted from 0" if torch.cuda.is_available() else "no GPU here; use --device cpu"
        raise DeviceError(f"device {name!r} was asked for and torch sees {seen}")
    return device
