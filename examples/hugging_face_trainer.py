"""A Hugging Face model trained privately: a `Trainer` whose inner loop is that of `PrivateTraining`.

    pip install transformers accelerate
    python examples/hugging_face_trainer.py runs/text

The model is a tiny BERT with random weights, so that nothing is downloaded; with `from_pretrained` the lines are the
same. The Trainer keeps its arguments, callbacks, evaluation and saving; batches and steps are the private ones. Its
callbacks hear of steps and epsilon, never of the loss.
"""

import sys
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import TrainOutput

import securesgd as ss

WORDS, LENGTH = 40, 8


class Logits(nn.Module):
    """A Hugging Face classifier as a function from tokens to logits, which is what a run folder is about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids).logits


class PrivateTrainer(Trainer):
    """A Trainer that trains by DP-SGD into a run folder."""

    def __init__(self, *args: object, out: str, privacy: dict[str, object], **options: object) -> None:
        super().__init__(*args, **options)
        self.out, self.privacy = out, privacy

    def train(self, *_: object, **__: object) -> TrainOutput:
        """Train privately; the optimizer is the one of the Trainer's arguments, and so is the learning rate."""
        arguments, control = self.args, self.control
        optimizer_class, options = self.get_optimizer_cls_and_kwargs(arguments)
        logits = Logits(self.model)
        training = ss.PrivateTraining(
            logits, optimizer_class(logits.parameters(), **options), self.train_dataset, out=self.out,
            test=self.eval_dataset, steps=arguments.max_steps, batch_size=arguments.train_batch_size, **self.privacy,
        )  # fmt: skip
        self.state.max_steps = training.steps
        self.state.compute_steps(arguments, training.steps)
        control = self.callback_handler.on_train_begin(arguments, self.state, control)
        for batch in training.batches():
            training.step(batch)
            self.state.global_step = training.step_number
            control = self.callback_handler.on_step_end(arguments, self.state, control)
            if control.should_log:
                control.should_log = False
                self.log({"epsilon": training.epsilon})
            if control.should_training_stop:  # by a callback that has seen nothing private
                break
        self.run = training.finish()
        self.callback_handler.on_train_end(arguments, self.state, control)
        return TrainOutput(self.state.global_step, float("nan"), {"epsilon": training.epsilon})


class ShowEpsilon(TrainerCallback):
    """Print what the Trainer logs."""

    def on_log(self, arguments: object, state: object, control: object, logs: dict[str, float], **_: object) -> None:
        print(f"step {state.global_step}: epsilon {logs['epsilon']:.2f}")


def sentences(count: int, seed: int) -> TensorDataset:
    """Return sentences of tokens, and whether the token 1 occurs in them more often than the token 2."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    places = torch.rand(count, LENGTH, generator=generator) < 0.4
    return TensorDataset(torch.where(places, 2 - labels[:, None], tokens), labels)


def main(folder: str = "runs/text") -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch, max_steps=20, per_device_train_batch_size=128, learning_rate=0.01, logging_steps=10,
            report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = PrivateTrainer(
            model=BertForSequenceClassification(config), args=arguments, train_dataset=sentences(600, seed=1),
            eval_dataset=sentences(200, seed=2), callbacks=[ShowEpsilon()], out=folder,
            privacy={"epsilon": 8.0, "delta": 1e-4, "max_grad_norm": 1.0},
        )  # fmt: skip
        trainer.train()
    print(trainer.run.privacy)
    print(f"accuracy {trainer.run.test_accuracy:.3f} on {trainer.run.test_images} test sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
