// SPDX-License-Identifier: Apache-2.0
#pragma once
// The strategy for one process: no communication at all. Also the oracle of every other strategy.
//
//     Trainer<Single> trainer(ctx, config);
//     Trainer<basic_single<precision<bf16>>> half(ctx, config);

#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/strategy.hpp>

#include <string_view>

namespace skein {

namespace train::detail {

class single_process {
public:
    /// Throws errc::usage in a world of several ranks.
    single_process(const context& ctx, torch::nn::Module& module, const precision_policy& policy);
    single_process(const single_process&) = delete;
    single_process& operator=(const single_process&) = delete;
    ~single_process();

    [[nodiscard]] flat_store& store() noexcept { return store_; }
    void begin_step() { store_.expect_gradients(); }
    void begin_micro(bool /*last*/) noexcept {}
    void finish_backward();
    [[nodiscard]] double squared_norm(double mine) const noexcept { return mine; }
    /// A gradient that may come in pieces, of a block, comes to its place behind its pass.
    bool wait_for_pieces();
    void publish() { store_.cast_owned(); }
    void sync_buffers();
    void begin_evaluation() { store_.require_taken(); }
    void end_evaluation() noexcept {}
    void abort(const error& /*why*/) noexcept {}
    void finish();
    /// Throws errc::usage when the context has several ranks now.
    void rebind() const;

private:
    void show_masters();

    const context* ctx_;
    torch::nn::Module* module_;
    flat_store store_;
};

} // namespace train::detail

/// Trains in this process alone.
template <train::precision_setting... Settings>
class basic_single : public train::detail::single_process {
public:
    static constexpr std::string_view name = "Single";
    static constexpr bool works_on_devices = true; ///< never run on one: docs/gpu.md
    [[nodiscard]] static train::precision_policy used_precision() {
        return train::precision_of<Settings...>();
    }

    basic_single(const train::context& ctx, torch::nn::Module& module)
        : single_process(ctx, module, used_precision()) {}
};

/// One process that computes and sums in float32.
using Single = basic_single<>;

static_assert(train::strategy<Single>);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/single.ipp>
#endif
