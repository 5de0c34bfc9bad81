// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything for training: the torch-free part (skein.hpp), torch, dist and the Trainer.
// Needs LibTorch; link skein::train.
// Written by scripts/check_mirror.py --write.

#include <skein/dist.hpp>
#include <skein/report.hpp>
#include <skein/skein.hpp>
#include <skein/torch.hpp>
#include <skein/train/batch_growth.hpp>
#include <skein/train/build.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/description.hpp>
#include <skein/train/early_stopping.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/input.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/loss.hpp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/loss_spike.hpp>
#include <skein/train/manifest.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/module_type.hpp>
#include <skein/train/offload.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/optimizers.hpp>
#include <skein/train/parameter_groups.hpp>
#include <skein/train/plateau.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/recompute.hpp>
#include <skein/train/reduce_on_plateau.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/safetensors.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/schedule.hpp>
#include <skein/train/session.hpp>
#include <skein/train/shard_layout.hpp>
#include <skein/train/single.hpp>
#include <skein/train/stage.hpp>
#include <skein/train/state_memory.hpp>
#include <skein/train/step_plan.hpp>
#include <skein/train/stop_at.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/trainer.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/weight_average.hpp>
#include <skein/train/weights.hpp>
#include <skein/train/wrap.hpp>
#include <skein/train/zero.hpp>
