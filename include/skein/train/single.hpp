// SPDX-License-Identifier: Apache-2.0
#pragma once
// The strategy for one process: no communication at all. Also the oracle of every other strategy.

#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/strategy.hpp>

#include <string_view>

namespace skein {

/// Trains in this process alone.
class Single {
public:
    static constexpr std::string_view name = "Single";

    /// Throws errc::usage in a world of several ranks.
    Single(const train::context& ctx, torch::nn::Module& module);

    [[nodiscard]] train::flat_store& store() noexcept { return store_; }
    void begin_step() { store_.expect_gradients(); }
    void begin_micro(bool /*last*/) noexcept {}
    void finish_backward() { store_.settle_gradients(); }
    [[nodiscard]] double squared_norm(double mine) const noexcept { return mine; }
    void publish() noexcept {}
    void sync_buffers() noexcept {}
    void begin_evaluation() noexcept {}
    void end_evaluation() noexcept {}
    void abort(const error& /*why*/) noexcept {}
    void finish() noexcept {}

private:
    train::flat_store store_;
};

static_assert(train::strategy<Single>);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/single.ipp>
#endif
