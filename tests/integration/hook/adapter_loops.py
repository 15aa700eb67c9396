"""Twenty optimizer steps of two micro-batches by a framework's own trainer. Run: adapter_loops.py lightning|transformers OUT."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 20


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return STEPS * 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index % 5)), "labels": torch.zeros(1)}


def run_lightning(out: str) -> None:
    import lightning

    from eroica.producers.hook.lightning import EroicaCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return (self.layer(batch["x"]) - batch["labels"]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[EroicaCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=2))


def run_transformers(out: str) -> None:
    from transformers import Trainer, TrainingArguments

    from eroica.producers.hook.huggingface import EroicaCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.layer(x) - labels).pow(2).mean()}

    arguments = TrainingArguments(
        output_dir=out,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=[EroicaCallback()]).train()


if __name__ == "__main__":
    {"lightning": run_lightning, "transformers": run_transformers}[sys.argv[1]](sys.argv[2])
