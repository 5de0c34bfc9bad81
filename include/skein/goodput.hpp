// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer goodput.
// Written by scripts/check_mirror.py --write.

#include <skein/goodput/goodput.hpp>
#include <skein/goodput/gradient_noise.hpp>
#include <skein/goodput/rate_rule.hpp>
#include <skein/goodput/step_time.hpp>
