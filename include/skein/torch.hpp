// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer torch.
// Written by scripts/check_mirror.py --write.

#include <skein/torch/tensor.hpp>
#include <skein/torch/torch.hpp>
