// SPDX-License-Identifier: Apache-2.0
// expect: a callback needs one of on_start, on_agreed, on_step, on_eval, on_checkpoint and on_end
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

struct misspelt {
    void on_steps(const skein::train::step_info&) {}
};

void use(skein::train::context& ctx) {
    skein::Trainer<skein::Single, misspelt> trainer(ctx, {}, misspelt{});
}
