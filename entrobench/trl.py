"""Any method of the registry in TRL: GRPOTrainer with the method in place of `loss_type`.

    from entrobench.trl import EntrobenchTrainer

    trainer = EntrobenchTrainer(
        method="clip_b(share=0.02)", model=..., reward_funcs=..., args=GRPOConfig(...), train_dataset=...
    )
    trainer.train()

Cells of a matrix are trained by it under `train.backend: trl` (docs/elsewhere.md).
"""

from harness.elsewhere.trl.trainer import EntrobenchTrainer

__all__ = ["EntrobenchTrainer"]
