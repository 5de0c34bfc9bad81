// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every public header of the layer sched.
// Written by scripts/check_mirror.py --write.

#include <skein/sched/demands.hpp>
#include <skein/sched/resources.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/sched/task_environment.hpp>
