// SPDX-License-Identifier: Apache-2.0
#pragma once
// A look at the gradients behind a step: squared norms of each one by itself and of their mean, by
// parameter group. From them follow how noisy gradients are and what a larger batch is worth, see
// goodput/gradient_noise.hpp.
//
// A callback looks by one more member, which is asked once, when the session opens:
//
//     struct noise_of_gradients {
//         skein::train::gradient_look look() const { return {}; }
//         void on_step(const skein::train::step_info& s) {
//             if (s.squares != nullptr)
//                 noise.take(*s.squares, s.squares_are_differenced ? 2.0 : 1.0,
//                            s.squares_are_differenced);
//         }
//         skein::goodput::gradient_noise noise;
//     };
//
// A gradient is that of one micro-batch of one rank, or of one logical shard. Where nobody looks,
// nothing is computed and no byte of a run's files is another one. Where somebody does, parameters
// keep their bits; the numbers travel in the row that the ranks exchange anyway.

#include <skein/core/error.hpp>

#include <cstdint>

namespace skein::train {

/// What a callback wants to see. All ranks alike; several callbacks that look agree on
/// `preconditioned`.
struct gradient_look {
    bool is_on = true; ///< false: it does not look, as without the member
    /// Each element divided by what Adam divides by: the root of its second moment before the step,
    /// corrected for its start, plus eps. Elements that had no gradient so far count nothing, and
    /// there are no numbers in the first `first_preconditioned` steps.
    ///   errors  not_supported, before the first step: an optimizer without a mean of squares, or a
    ///           rank that has a part of it only
    bool preconditioned = false;
    /// On one worker, a step of one gradient is compared with the step before: costs a copy of the
    /// gradient. False: it has no numbers.
    bool differences = true;

    /// Of so many steps the second moments say too little; as AdaptDL has it.
    static constexpr std::uint64_t first_preconditioned = 5;

    /// Another callback looks, too.
    ///   errors  usage: one wants preconditioned gradients and the other does not
    void add(const gradient_look& other) {
        if (!other.is_on) return;
        if (is_on && preconditioned != other.preconditioned)
            throw error(errc::usage, "one callback looks at preconditioned gradients and another "
                                     "one at gradients as they are")
                .with_hint("let both look alike");
        is_on = true;
        preconditioned = other.preconditioned;
        differences = differences || other.differences;
    }
};

} // namespace skein::train
