// SPDX-License-Identifier: Apache-2.0
// The rates that reduce_on_plateau gives over curves, for tests/interop/plateau_test.py.
//
//     skein_plateau < curves     # a curve is two lines: factor patience threshold relative cooldown
//                                # min_lr eps lower_is_better rate, then its numbers

#include <skein/train/reduce_on_plateau.hpp>

#include <fmt/core.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

/// Through text: a stream reads no "nan".
double number(std::istream& from) {
    std::string word;
    from >> word;
    return std::strtod(word.c_str(), nullptr);
}

int main() {
    std::string settings, curve;
    while (std::getline(std::cin, settings) && std::getline(std::cin, curve)) {
        std::istringstream in(settings), numbers(curve);
        skein::reduce_on_plateau_options how;
        how.factor = number(in);
        how.patience = static_cast<int>(number(in));
        how.threshold = number(in);
        how.relative = number(in) != 0;
        how.cooldown = static_cast<int>(number(in));
        how.min_lr = number(in);
        how.eps = number(in);
        how.lower_is_better = number(in) != 0;
        const double rate = number(in);
        skein::reduce_on_plateau rule(how);
        skein::train::step_plan plan;
        for (numbers >> std::ws; !numbers.eof(); numbers >> std::ws) {
            const std::vector<skein::report::metric_value> metrics{{"val_loss", number(numbers)}};
            const auto made = rule.on_eval({.metrics = &metrics, .plan = &plan, .next_rate = rate});
            plan = made.plan.value_or(plan);
            // What is saved is enough to go on with.
            skein::reduce_on_plateau again(how);
            again.restore(rule.state());
            rule = again;
            fmt::print("{} ", rate * plan.rate_factor);
        }
        fmt::print("\n");
    }
}
