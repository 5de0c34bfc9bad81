// SPDX-License-Identifier: Apache-2.0
// expect: two callbacks of one type that keep a state
#include <skein/train/early_stopping.hpp>
#include <skein/train/single.hpp>
#include <skein/train/stop_at.hpp>
#include <skein/train/trainer.hpp>

struct second : skein::early_stopping {
    using early_stopping::early_stopping;
};

// Without a state there may be two of a type.
using apart =
    skein::Trainer<skein::Single, skein::early_stopping, second, skein::stop_at, skein::stop_at>;
static_assert(sizeof(apart) > 0);
#ifndef SKEIN_COMPILES
static_assert(sizeof(skein::Trainer<skein::Single, skein::early_stopping, skein::early_stopping>) >
              0);
#endif
