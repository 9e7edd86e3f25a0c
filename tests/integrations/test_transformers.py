"""Growth inside the Trainer of transformers: nothing extra to say, the host as if alone, and checkpoints that are enough."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import esper
from esper.integrations.transformers import GrowthCallback
from esper.leyline.errors import ConfigError, StateError
from esper.leyline.stages import Stage
from esper.nissa import read_events
from tests.integrations.growing import OPEN, Eager, same, told

EPOCHS, BATCHES = 8, 4
TOKENS = torch.randint(0, 50, (32, 12), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row, "note": torch.tensor(0)} for row in TOKENS]
"""With a column that no model takes."""


def gpt2(dropout: float = 0.1) -> GPT2LMHeadModel:
    """Tiny, and with tied weights as GPT-2 has them."""
    torch.manual_seed(1)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **rates))


def growable(**settings: Any) -> esper.Growable:
    example = {"input_ids": TOKENS[:2]}
    return esper.Growable(gpt2(), ["transformer.h.0", "transformer.h.1"], example, **{"gates": OPEN, **settings})


def perplexity(model: nn.Module) -> esper.Evaluation:
    return esper.Evaluation(score=model(input_ids=TOKENS[:8], labels=TOKENS[:8]).loss.exp().item(), higher_is_better=False)


def trainer(model: nn.Module, folder: Path, growth: GrowthCallback | None = None, **settings: Any) -> Trainer:
    known = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "max_grad_norm": 0.05,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = TrainingArguments(output_dir=str(folder), **{**known, **settings})
    callbacks = [] if growth is None else [growth]
    return Trainer(model=model, args=arguments, train_dataset=ROWS, eval_dataset=ROWS[:8], callbacks=callbacks)


def eager() -> GrowthCallback:
    return GrowthCallback(evaluate=perplexity, policy=Eager(blueprint="lora8"))


def test_a_trainer_takes_a_growable_without_a_word_more(tmp_path):
    model = growable()
    tended = trainer(model, tmp_path, eager(), num_train_epochs=2)
    assert tended.label_names == ["labels"]
    tended.train()
    assert tended.evaluate()["eval_loss"] > 0.0
    assert tended.predict(ROWS[:4]).predictions.shape == (4, 12, 50)
    assert {"loss", "grad_norm", "learning_rate"} <= set(tended.state.log_history[0])
    assert tended.args.max_grad_norm == 0.05
    tended.save_model(str(tmp_path / "saved"))
    assert model.generate(TOKENS[:1, :4], max_new_tokens=3, do_sample=False).shape == (1, 7)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_isolated_seed_leaves_the_host_as_it_trains_alone(tmp_path, accumulate):
    """Every step is clipped: a seed that had a part in the norm would change the host."""
    alone = gpt2()
    alone_trainer = trainer(alone, tmp_path, gradient_accumulation_steps=accumulate, num_train_epochs=2)
    alone_trainer.train()
    model = growable()
    for slot in model.slots:
        model.germinate(slot, "lora8")
        model.advance(slot)
    before = copy.deepcopy(model.slots)
    growth = GrowthCallback(evaluate=perplexity, policy="wait")
    trainer(model, tmp_path, growth, gradient_accumulation_steps=accumulate, num_train_epochs=2).train()
    assert model.at(Stage.TRAINING) == list(model.slots)
    same(model.host, alone)
    assert all(not torch.equal(a, b) for a, b in zip(model.slots.parameters(), before.parameters(), strict=True) if a.grad is not None)
    assert min(entry["grad_norm"] for entry in alone_trainer.state.log_history if "grad_norm" in entry) > 0.05, "each step was clipped"


@pytest.mark.parametrize(
    ("settings", "checkpoints"),
    [({"save_strategy": "epoch"}, (12, 24)), ({"save_strategy": "steps", "save_steps": 4}, (12, 24)), ({"save_steps": 3}, (9, 15))],
    ids=["end", "last step", "middle"],
)
def test_a_resumed_training_is_the_same_bit_for_bit(tmp_path, settings, checkpoints):
    """From the end of an epoch; from its last step, when the gardener has not looked at it yet; and from the middle of one."""
    settings = {"save_strategy": "steps", **settings}
    whole, growth = growable(), eager()
    trainer(whole, tmp_path, growth, **settings).train()
    assert sum("FOSSILIZE" in line for line in told(growth.gardener)) == 2
    for step in checkpoints:
        again, resumed = growable(), eager()
        trainer(again, tmp_path, resumed, **settings).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert told(resumed.gardener) == told(growth.gardener)
        same(again, whole)


def test_the_same_trainer_trains_again_and_resumes(tmp_path):
    model, growth = growable(), eager()
    tended = trainer(model, tmp_path, growth, save_strategy="epoch", lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch")
    tended.train()
    history, ended = told(growth.gardener), copy.deepcopy(model.state_dict())
    tended.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{3 * BATCHES}"))
    assert told(growth.gardener) == history
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, ended[name])] == []
    tended.train()
    assert len(told(growth.gardener)) == 2 * EPOCHS


def test_the_best_checkpoint_comes_back_as_it_was_with_what_grew_in_it(tmp_path):
    model, growth = growable(), eager()
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "score"}
    tended = trainer(model, tmp_path, growth, **settings)
    scores = iter([1.0, 0.0, 3.0, *[0.0] * 2 * EPOCHS])
    tended.compute_metrics = lambda predicted: {"score": next(scores)}
    kept = []
    tended.add_callback(type("Keep", (TrainerCallback,), {"on_save": lambda *args, **known: kept.append(copy.deepcopy(model))})())
    tended.train()
    same(model, kept[2])
    assert model.at(Stage.BLENDING, Stage.HOLDING), "something was growing in it"
    assert all(p.requires_grad for p in model.harvest(live="keep").parameters())
    tended.train()
    assert len(told(growth.gardener)) == 2 * EPOCHS


class Interrupt(TrainerCallback):
    """A Trainer tells nobody when it is interrupted."""

    done = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        if state.global_step == 3 * BATCHES and not self.done:
            self.done = True
            raise KeyboardInterrupt


def test_a_training_that_was_interrupted_goes_on_with_its_record(tmp_path):
    growth = GrowthCallback(evaluate=perplexity, policy="wait", run=tmp_path / "run")
    tended = trainer(growable(), tmp_path, growth, save_strategy="epoch", num_train_epochs=5)
    tended.add_callback(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        tended.train()
    tended.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * BATCHES}"))
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert [each.epoch for each in events if each.event.kind() == "epoch_finished"] == [1, 2, 3, 4, 5]


def test_what_cannot_work_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="GPT2LMHeadModel neither is nor holds one; wrap the model first"):
        trainer(gpt2(), tmp_path, eager())
    fewer = esper.Growable(gpt2(), ["transformer.h.0"], {"input_ids": TOKENS[:2]})
    trainer(fewer, tmp_path, eager())
    with pytest.raises(StateError, match=r"the checkpoint has a slot 'transformer\.h\.1', and this model has transformer\.h\.0; give it"):
        fewer.load_state_dict(growable().state_dict(), strict=False)  # as the Trainer does it
    late = trainer(growable(), tmp_path)
    late.add_callback(eager())
    with pytest.raises(ConfigError, match=r"Trainer\(..., callbacks=\[...\]\), not add_callback"):
        late.train()
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True)
    with pytest.raises(ConfigError, match=r"Trainer\(model=...\), not model_init="):
        Trainer(model_init=lambda: growable(), args=arguments, train_dataset=ROWS, callbacks=[eager()]).train()
