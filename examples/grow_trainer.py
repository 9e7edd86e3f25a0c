"""Grow a tiny GPT-2 inside the Trainer of transformers while it learns to write Python, from the standard library's own text.

python examples/grow_trainer.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import esper
from esper.integrations.transformers import GrowthCallback
from esper.tolaria import tasks


def main() -> None:
    """Train, tell what grew, write a line with what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="epochs of training (default: 12)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a network this small is slower with more

    data = tasks.get("stdlib").load(None, torch.device("cpu"))
    train, val = data.train.x[:512], data.val.x[:64]  # blocks of 64 characters
    torch.manual_seed(0)
    sizes = {"vocab_size": 98, "n_positions": 64, "n_embd": 24, "n_inner": 4, "n_layer": 1, "n_head": 2}  # too small on purpose
    settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    net = GPT2LMHeadModel(GPT2Config(**sizes, **settings))
    net.loss_type = "ForCausalLM"  # what it would take in any case, after a word about it
    model = esper.Growable(net, slots=["transformer.h.0"], example={"input_ids": val[:2]})

    def accuracy(network: nn.Module) -> float:
        """Next characters that are predicted, in points."""
        return 100 * (network(input_ids=val).logits[:, :-1].argmax(-1) == val[:, 1:]).float().mean().item()

    growth = GrowthCallback(evaluate=accuracy, rent=0.0)  # whatever helps, however little
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=options.epochs, per_device_train_batch_size=16, learning_rate=0.01,
            warmup_steps=20, lr_scheduler_type="constant_with_warmup", save_strategy="no", report_to="none", disable_tqdm=True,
            logging_strategy="no", use_cpu=True,
        )  # fmt: skip
        rows = [{"input_ids": block, "labels": block} for block in train]
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[growth]).train()

    for entry in growth.gardener.history:
        print(entry)
    print(model)
    plain = model.harvest().eval()
    print(f"harvested: {accuracy(plain):.2f} points on val, {sum(p.numel() for p in plain.parameters()):,} parameters")
    print("generates:", plain.generate(val[:1, :16], max_new_tokens=8, do_sample=False)[0, 16:].tolist())


if __name__ == "__main__":
    main()
