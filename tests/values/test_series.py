from __future__ import annotations

import math

import pytest

from assay.values.series import direction_of, mean_and_sd, whole_step

LOWER = """
loss val_loss valLoss val.loss train/loss trainloss loss1 accuracy_loss top5_error error_rate err WER cer PPL perplexity
rmse test_MSE nll epoch_time step_time_ms latency time_per_step ms_per_batch duration per_sample_loss eval/loss_per_token
FID val/time peak_memory
"""
HIGHER = """
acc acc1 Acc@1 valAcc test.accuracy top1 top5 F1 f1_score bleu BLEU4 rougeL mAP mIoU auc R2 reward throughput fps
images/sec tokens_per_s samples_per_second recall precision psnr acc_min gradient_norm whatever x
"""


@pytest.mark.parametrize("metric", [*LOWER.split(), *HIGHER.split(), "", "42"])
def test_the_better_direction(metric):
    assert direction_of(metric) == ("min" if metric in LOWER.split() else "max")


def test_whole_steps_are_integers():
    assert [repr(whole_step(step)) for step in (3.0, 2.5, None, math.inf)] == ["3", "2.5", "None", "inf"]


@pytest.mark.parametrize("value", [0.1, 0.004, 1 / 3, 1e300])
def test_a_constant_has_no_spread(value):
    assert [mean_and_sd([value] * n)[1] for n in (2, 3, 5, 7)] == [0.0] * 4
    assert mean_and_sd([value, value * (1 + 1e-12)])[1] > 0
