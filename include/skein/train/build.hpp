// SPDX-License-Identifier: Apache-2.0
#pragma once
// Building a model that is too large for one rank: each block is cut up as soon as it is built.
//
//     // instead of: GPT model(options);
//     auto model = trainer.build([&] { return GPT(options); });
//     trainer.fit(model, ...);
//
// When the constructor of a block (skein::unit) has ended, only the rows that this rank owns are
// kept, and the block's parameters are empty tensors until fit(). All ranks draw the same initial
// values, from generators in the same state, so the result equals a model that was built whole, bit
// for bit; the most memory in use is the owned rows, what belongs to no block, and one block.
//
// A model whose root draws or loads the values of its blocks does that with for_each_parameter(),
// which puts one parameter together at a time; writing to a cut parameter itself is refused when
// fit() begins, but for p.data(), which hides what it does. C++ modules take no device, so there is
// no meta device to build on.

#include <skein/torch/tensor.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/shard_layout.hpp>
#include <skein/train/unit.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

namespace skein::train {

/// Calls visit(name, parameter) for every parameter in order of registration, each once. Parameters
/// of blocks that are cut up already are whole meanwhile: what visit writes to them is kept. What
/// was there before is there only in the rows that this rank owns.
void for_each_parameter(torch::nn::Module& module,
                        const std::function<void(const std::string&, at::Tensor&)>& visit);

namespace detail {

/// Which part of every block a rank keeps.
struct build_plan {
    int shards = 1; ///< 1: models are built whole
    int shard = 0;
    std::function<bool(const torch::nn::Module&)> is_block = {};
    /// Modules inside of blocks that stay whole: keep_f32.
    std::function<bool(const torch::nn::Module&)> stays_whole = {};
};

/// Blocks that are built on this thread while it lives are cut up. One at a time per thread.
class build_scope {
public:
    explicit build_scope(build_plan plan);
    build_scope(const build_scope&) = delete;
    build_scope& operator=(const build_scope&) = delete;
    ~build_scope();

    /// The one of this thread, or null.
    [[nodiscard]] static build_scope* current() noexcept;
    /// The constructor of a block has ended.
    void cut(torch::nn::Module& block, unit_mark& mark);
    /// Of all values before they were cut.
    [[nodiscard]] std::uint64_t checksum() const noexcept { return checksum_; }

private:
    [[nodiscard]] bool stays_whole(torch::nn::Module& block, const std::string& name) const;
    void keep_own_rows(unit_mark& mark);

    build_plan plan_;
    std::uint64_t checksum_ = 0;
};

/// Parameters that were cut up, by tensor.
[[nodiscard]] std::unordered_map<const void*, cut_parameter*> cut_parameters(
    torch::nn::Module& module);
/// They are in a store now.
void forget_cuts(torch::nn::Module& module);
/// Says so where ranks begin with other values: rank 0's count, as in PyTorch's DDP. Of a module that
/// build_for() has cut up it is known already that they are alike. Collective.
void compare_values(const context& ctx, torch::nn::Module& module);
/// The ranks that wait for this one in build_for() get the reason.
void tell_peers(const context& ctx, std::exception_ptr why);

} // namespace detail

/// What make() returns, built for a strategy: see Trainer::build(). Collective.
///   errors  mismatch when ranks drew different values
template <class Strategy, class Make>
[[nodiscard]] auto build_for(const context& ctx, Make make) {
    if constexpr (requires { Strategy::plan_build(ctx); }) {
        detail::build_scope scope(Strategy::plan_build(ctx));
        try {
            auto model = make();
            require_same(ctx, scope.checksum(), "the initial values of the model");
            return model;
        } catch (...) {
            detail::tell_peers(ctx, std::current_exception());
            throw;
        }
    } else {
        return make();
    }
}

/// What make() returns, built for a strategy, then given its values by fill(module): those that it
/// drew need not be alike. Collective, as fill() is.
template <class Strategy, class Make, class Fill>
[[nodiscard]] auto build_filled(const context& ctx, Make make, Fill fill) {
    const auto build = [&] {
        if constexpr (requires { Strategy::plan_build(ctx); }) {
            detail::build_scope scope(Strategy::plan_build(ctx));
            return make();
        } else {
            return make();
        }
    };
    try {
        auto model = build();
        fill(*model);
        return model;
    } catch (...) {
        detail::tell_peers(ctx, std::current_exception());
        throw;
    }
}

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/build.ipp>
#endif
