// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/weight_average.hpp>.

#include <skein/core/error.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/state_memory.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE weight_average::weight_average(average_options options, flat_store& store,
                                            const std::string& folder)
    : options_(options), store_(&store) {
    if (!(options.decay >= 0.0 && options.decay < 1.0))
        throw error(errc::usage,
                    fmt::format("the decay {} of the average is not in [0, 1)", options.decay));
    values_ = make_state_buffer(folder, store.owned());
    const auto& pieces = store.pieces();
    for (std::size_t i = 0; i < pieces.size();) {
        auto run = pieces[i++];
        for (; i < pieces.size() && pieces[i].flat == run.flat + run.padded &&
               pieces[i].at == run.at + run.padded;
             ++i)
            run.padded += pieces[i].padded;
        runs_.push(store.params_P().narrow(0, run.flat, run.padded), {},
                   {values_.narrow(0, run.at, run.padded)});
    }
    restart();
}

SKEIN_INLINE void weight_average::update(std::uint64_t step) {
    const double t = static_cast<double>(step);
    const double decay =
        options_.warm_up ? std::min(options_.decay, (1.0 + t) / (10.0 + t)) : options_.decay;
    const auto rest = static_cast<float>(1.0 - decay);
    runs_.for_each([rest](const run_part& part) {
        const float* const __restrict__ p = part.params.data();
        float* const __restrict__ mean = part.states[0].data();
        for (std::size_t i = 0; i < part.params.size(); ++i) mean[i] += rest * (p[i] - mean[i]);
    });
}

SKEIN_INLINE void weight_average::swap() {
    store_->take_writes();
    shown_ = !shown_;
    runs_.for_each([](const run_part& part) {
        std::swap_ranges(part.params.begin(), part.params.end(), part.states[0].begin());
    });
    store_->cast_owned();
}

SKEIN_INLINE void weight_average::restart() {
    runs_.for_each([](const run_part& part) {
        std::copy(part.params.begin(), part.params.end(), part.states[0].begin());
    });
}

} // namespace skein::train
