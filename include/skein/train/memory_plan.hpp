// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a strategy keeps of a model in each rank's memory: by formula before anything is allocated,
// and counted.
//
//     const auto sizes = skein::train::measure_units(*model);
//     for (const auto& need : skein::train::plan_memory(sizes, {.ranks = 4}))
//         fmt::print("{} {}\n", need.strategy, need.total());
//
// Parameters, gradients, optimizer states and gathered units only. Activations depend on batch and
// model and are not guessed at, nor is what LibTorch and the program need for themselves (some 200
// MB). A page that several ranks have mapped counts once per host, in equal parts: as PSS counts
// it.

#include <skein/torch/tensor.hpp>
#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/wrap.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

namespace detail {
struct shard_policy;
}

/// Elements of a model's trainable parameters, padding included.
struct unit_sizes {
    std::int64_t total = 0;
    std::int64_t root = 0;    ///< of it in no block: gathered for a whole step
    std::int64_t largest = 0; ///< block
    std::int64_t blocks = 0;  ///< how many
};

/// The sizes of a model that has been grouped into units.
[[nodiscard]] unit_sizes sizes_of(std::span<const flat_unit> units);

/// Nothing is moved and nothing allocated.
///   plan    how a strategy would group them. Empty: blocks that are skein::unit; without such,
///           buckets of 25 MiB
///   errors  those of flat_store
[[nodiscard]] unit_sizes measure_units(torch::nn::Module& model, const plan_function& plan = {});

/// Where a model is trained, and in which precision.
struct memory_shape {
    int ranks = 1;
    int hosts = 1;        ///< with equal numbers of ranks
    bool one_copy = true; ///< the ranks of a host can map each other's memory (not over the ring)
    double states =
        2.0; ///< numbers per element that the optimizer keeps: AdamW 2, SGD with momentum 1
    double compute = 4.0; ///< bytes per element in forward and backward
    double reduce = 4.0;  ///< of gradients on their way
    double master =
        4.0; ///< of what the optimizer updates, its states and the summed gradients it reads
    bool saves_beside = false; ///< saves are written from a copy (checkpoint_config::asynchronous)

    [[nodiscard]] int ranks_per_host() const noexcept {
        return hosts > 0 ? (ranks + hosts - 1) / hosts : ranks;
    }
};

/// Bytes of one rank.
struct memory_need {
    std::string strategy{};
    double parameters = 0.0;
    double gradients = 0.0;
    double optimizer = 0.0;
    double gathered = 0.0; ///< of other ranks' parameters, while they are in use
    double saves = 0.0;    ///< the copy of what this rank saves

    [[nodiscard]] double total() const noexcept {
        return parameters + gradients + optimizer + gathered + saves;
    }
};

/// The mean over the ranks: pieces differ by a row.
///   policy  of a strategy (detail/sharded.hpp); the name goes into the result
/// P elements, N ranks that share, m, r and c bytes (master, reduce, compute), s states:
///   parameters  m P, or m P / N; and c P more when c is not m. Shared by the L ranks of a host:
///               divided by L
///   gradients   r P; cut: r (root + 2 blocks) + m P / N; not cut and r is not m: m P / N more
///   optimizer   s m P, or s m P / N
///   saves       (1 + s) m P / N, N all ranks but under Hybrid; 0 where saves hold training up
///   gathered    c (root + blocks in use) (N - 1) / N, of parameters that are cut between hosts
[[nodiscard]] memory_need need_of(const detail::shard_policy& policy, const unit_sizes& sizes,
                                  const memory_shape& shape);

/// The policies of Single, DDP, Zero1, Zero2, FSDP and Hybrid, by these names in small letters.
[[nodiscard]] std::span<const detail::shard_policy> known_policies();
/// The need of each of them.
[[nodiscard]] std::vector<memory_need> plan_memory(const unit_sizes& sizes,
                                                   const memory_shape& shape);

/// What there is for the ranks of a host together.
struct memory_limit {
    double bytes = 0.0;
    std::string source{}; ///< in words
};

/// The setting if it is positive, else the least of the limit of this process's control group
/// (version 2) and the memory that the system has available.
[[nodiscard]] memory_limit find_memory_limit(double setting = 0.0);

/// Lines for people: a row per strategy, what does not fit is marked.
[[nodiscard]] std::string memory_table(const unit_sizes& sizes, const memory_shape& shape,
                                       const memory_limit& limit);

/// The bytes that a store and the states of its optimizer hold, by kind; what peers share counts in
/// parts.
///   own_part  of the parameters this rank keeps what it owns alone, or all ranks of the host have
///             one copy
[[nodiscard]] memory_need count_memory(flat_store& store, std::span<const at::Tensor> states,
                                       bool own_part);

/// Of this process, pages that others have mapped too counted in parts; 0 where the kernel does not
/// say.
[[nodiscard]] double proportional_set_size();

/// Numbers per element that the optimizer keeps.
[[nodiscard]] double states_of(const optimizer_options& options);

namespace detail {

/// The shape of a run, as far as it is known before its groups are made.
[[nodiscard]] memory_shape shape_of(const context& ctx, const run_config& config, double states,
                                    const precision_policy& precision = {});

/// Throws errc::usage when the state is too large for the limit, with the need of every strategy:
/// before any of it is allocated. A strategy of another name than the known ones is let through.
void refuse_too_large(std::string_view strategy, torch::nn::Module& model, const context& ctx,
                      const run_config& config, const optimizer_options& options,
                      const precision_policy& precision = {});

/// What a run keeps, counted beside the formula, for the lines at its start; empty for an unknown
/// strategy.
[[nodiscard]] std::string memory_notice(std::string_view strategy, flat_store& store,
                                        std::span<const at::Tensor> states,
                                        const memory_shape& shape);

} // namespace detail
} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/memory_plan.ipp>
#endif
