// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer models.
// Written by scripts/check_mirror.py --write.

#include <skein/models/conv_ctc.hpp>
#include <skein/models/efficientnet.hpp>
#include <skein/models/gpt2.hpp>
#include <skein/models/llama.hpp>
#include <skein/models/resnet.hpp>
#include <skein/models/vit.hpp>
