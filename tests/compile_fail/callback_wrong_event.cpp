// SPDX-License-Identifier: Apache-2.0
// expect: on_step must take const train::step_info&
#include <skein/train/callbacks.hpp>

struct mistaken {
    void on_step(int) {}
};

int main() {
    mistaken m;
    skein::train::detail::tell(m, skein::train::step_info{});
}
