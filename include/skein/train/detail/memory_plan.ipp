// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/memory_plan.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/this_process.hpp>
#include <skein/report/progress.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/sharded.hpp>
#include <skein/train/unit.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE unit_sizes sizes_of(std::span<const flat_unit> units) {
    unit_sizes out;
    for (const auto& u : units) {
        const auto size = u.place.size();
        out.total += size;
        if (u.name.empty()) {
            out.root += size;
            continue;
        }
        out.largest = std::max(out.largest, size);
        out.blocks += 1;
    }
    return out;
}

SKEIN_INLINE unit_sizes measure_units(torch::nn::Module& model, const plan_function& plan) {
    store_options only;
    only.only_layout = true;
    only.plan = plan;
    if (!plan)
        only.plan = [](torch::nn::Module& root, const std::vector<plan_parameter>& parameters) {
            const auto marked = [](const torch::nn::Module& m) {
                return dynamic_cast<const unit_mark*>(&m) != nullptr;
            };
            for (const auto& each : root.modules(/*include_self=*/false))
                if (marked(*each)) return detail::plan_blocks(root, parameters, marked, {});
            return detail::plan_buckets(parameters, bucket<>::first_bytes, bucket<>::bytes);
        };
    const flat_store layout(model, only);
    return sizes_of(layout.units());
}

SKEIN_INLINE double states_of(const optimizer_options& options) {
    const auto own = static_cast<double>(options.how.states().size());
    return own + (options.more.average ? 1.0 : 0.0);
}

SKEIN_INLINE memory_need need_of(const detail::shard_policy& policy, const unit_sizes& sizes,
                                 const memory_shape& shape) {
    const bool alone = shape.ranks == 1 || policy.name == "single";
    const int sharing = alone || !policy.shard_states ? 1
                        : policy.inside_hosts         ? shape.ranks_per_host()
                                                      : shape.ranks;
    const bool mixed = shape.compute != shape.master;
    const double P = static_cast<double>(sizes.total), N = sharing;
    // One memory for all that share the parameters, when they are on one host.
    const bool one_copy = shape.one_copy && sharing > 1 && sharing <= shape.ranks_per_host();
    const bool cut = policy.shard_parameters && sharing > 1 && !one_copy; // and gathered when used
    const bool cut_gradients = policy.shard_gradients && sharing > 1;
    const auto blocks = [&](std::int64_t count) {
        return static_cast<double>(sizes.root + sizes.largest * std::min(count, sizes.blocks));
    };

    memory_need need{.strategy = std::string(policy.name)};
    const double whole = (one_copy || cut ? P / N : P); // of what forward and backward read
    need.parameters = (mixed ? shape.master * P / N : 0.0) + shape.compute * whole;
    need.gradients = shape.reduce * (cut_gradients ? blocks(2) : P);
    if (cut_gradients || shape.reduce != shape.master) need.gradients += shape.master * P / N;
    need.optimizer = shape.states * shape.master * P / N;
    // What every rank has is dealt out to them; copies of a shard on further hosts are not saved.
    if (shape.saves_beside)
        need.saves = (1.0 + shape.states) * shape.master * P /
                     (alone                 ? 1
                      : policy.inside_hosts ? sharing
                                            : shape.ranks);
    if (cut) {
        const double used =
            policy.reshard_after_forward ? blocks(1 + std::max(0, policy.prefetch)) : P;
        need.gathered = shape.compute * used * (N - 1) / N;
    }
    return need;
}

SKEIN_INLINE std::span<const detail::shard_policy> known_policies() {
    using detail::shard_policy;
    static const std::array<shard_policy, 6> all{
        shard_policy{.name = "single"},
        shard_policy{.name = "ddp"},
        shard_policy{.name = "zero1", .shard_states = true},
        shard_policy{.name = "zero2", .shard_states = true, .shard_gradients = true},
        shard_policy{.name = "fsdp",
                     .shard_states = true,
                     .shard_gradients = true,
                     .shard_parameters = true},
        shard_policy{.name = "hybrid",
                     .shard_states = true,
                     .shard_gradients = true,
                     .shard_parameters = true,
                     .inside_hosts = true}};
    return all;
}

SKEIN_INLINE std::vector<memory_need> plan_memory(const unit_sizes& sizes,
                                                  const memory_shape& shape) {
    std::vector<memory_need> out;
    for (const auto& policy : known_policies()) out.push_back(need_of(policy, sizes, shape));
    return out;
}

// ---- limits -------------------------------------------------------------------------------------

namespace detail {

/// The number of bytes behind `key` in a file of lines such as "MemAvailable:  123 kB".
SKEIN_INLINE std::optional<double> kilobytes_in(const char* path, std::string_view key) {
    const auto text = read_small_file(path);
    auto at = text.find(key);
    if (at == std::string::npos) return std::nullopt;
    at = text.find_first_of("0123456789", at + key.size());
    if (at == std::string::npos) return std::nullopt;
    std::uint64_t number = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), number);
    return static_cast<double>(number) * 1024.0;
}

/// The least memory.max from this process's control group up to the root of the hierarchy.
SKEIN_INLINE std::optional<double> control_group_limit() {
    const auto groups = read_small_file("/proc/self/cgroup");
    const auto line = groups.find("0::/");
    if (line == std::string::npos) return std::nullopt;
    auto path = groups.substr(line + 3, groups.find('\n', line) - line - 3);
    std::optional<double> least;
    for (;;) {
        const auto text = read_small_file(("/sys/fs/cgroup" + path + "/memory.max").c_str());
        std::uint64_t bytes = 0;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), bytes).ptr;
        if (end != text.data()) // not "max"
            least = std::min(least.value_or(1e300), static_cast<double>(bytes));
        if (path.empty()) return least;
        path.resize(path.rfind('/'));
    }
}

} // namespace detail

SKEIN_INLINE memory_limit find_memory_limit(double setting) {
    if (setting > 0) return {setting, "the setting memory_limit"};
    memory_limit limit{1e300, "no limit that the system tells"};
    if (const auto group = detail::control_group_limit())
        limit = {*group, "memory.max of the control group"};
    const auto available = detail::kilobytes_in("/proc/meminfo", "MemAvailable:");
    if (available && *available < limit.bytes) limit = {*available, "MemAvailable of the host"};
    return limit;
}

SKEIN_INLINE double proportional_set_size() {
    return detail::kilobytes_in("/proc/self/smaps_rollup", "\nPss:").value_or(0.0);
}

// ---- for people ---------------------------------------------------------------------------------

SKEIN_INLINE std::string memory_table(const unit_sizes& sizes, const memory_shape& shape,
                                      const memory_limit& limit) {
    const auto text = [](double bytes) { return bytes > 0 ? report::human_bytes(bytes) : "-"; };
    const int here = shape.ranks_per_host();
    std::string out =
        fmt::format("{} parameters in {} blocks and a root of {}; {} ranks on {} host{}\n{:<9} "
                    "{:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n",
                    sizes.total, sizes.blocks, sizes.root, shape.ranks, shape.hosts,
                    shape.hosts == 1 ? "" : "s", "strategy", "parameters", "gradients", "optimizer",
                    "gathered", "each rank", "each host");
    for (const auto& need : plan_memory(sizes, shape)) {
        const int ranks = need.strategy == "single" ? 1 : here;
        const double host = need.total() * ranks;
        out += fmt::format("{:<9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}{}\n", need.strategy,
                           text(need.parameters), text(need.gradients), text(need.optimizer),
                           text(need.gathered), text(need.total()), text(host),
                           host > limit.bytes ? "  does not fit" : "");
    }
    if (shape.saves_beside)
        out += "each rank, and each host, with the copy from which saves are written beside "
               "training\n";
    if (limit.bytes < 1e300)
        out += fmt::format("limit of a host: {} ({})\n", report::human_bytes(limit.bytes),
                           limit.source);
    return out + "without activations, and without what the program itself needs (about 200 MB)\n";
}

SKEIN_INLINE memory_need count_memory(flat_store& store, std::span<const at::Tensor> states,
                                      bool own_part) {
    const auto bytes = [](const at::Tensor& t) { return static_cast<double>(t.nbytes()); };
    memory_need need;
    const double share = double(store.owned()) / double(store.size());
    need.parameters = bytes(store.params_P());
    if (own_part || store.is_mixed()) need.parameters *= share;
    if (store.is_mixed()) need.parameters += bytes(store.compute_P()) * (own_part ? share : 1.0);
    need.gradients = bytes(store.grads_P());
    if (store.keeps_own_grads()) need.gradients += double(store.owned()) * sizeof(float);
    for (const auto& t : states) need.optimizer += bytes(t);
    return need;
}

namespace detail {

SKEIN_INLINE memory_shape shape_of(const context& ctx, const run_config& config, double states,
                                   const precision_policy& precision) {
    memory_shape shape;
    shape.compute = static_cast<double>(c10::elementSize(precision.compute));
    shape.reduce = static_cast<double>(c10::elementSize(precision.reduce));
    shape.ranks = ctx.world_size();
    const int here = std::max(1, ctx.local_size());
    shape.hosts = std::max(1, (ctx.world_size() + here - 1) / here);
    shape.one_copy = config.communicator != "ring";
    shape.states = states;
    return shape;
}

SKEIN_INLINE const shard_policy* policy_of(std::string_view strategy) {
    std::string name(strategy);
    for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const auto& policy : known_policies())
        if (policy.name == name) return &policy;
    return nullptr;
}

SKEIN_INLINE void refuse_too_large(std::string_view strategy, torch::nn::Module& model,
                                   const context& ctx, const run_config& config,
                                   const optimizer_options& options,
                                   const precision_policy& precision) {
    const auto* policy = policy_of(strategy);
    if (policy == nullptr || (policy->name == "single" && ctx.world_size() > 1)) return;
    auto limit = find_memory_limit(static_cast<double>(config.memory_limit));
    const auto sizes = measure_units(model);
    const auto shape = shape_of(ctx, config, states_of(options), precision);
    const int here = shape.ranks_per_host();
    // What is available has paid for the model's parameters already, and they move into the store.
    if (limit.source.starts_with("MemAvailable")) limit.bytes += 4.0 * double(sizes.total) * here;
    const auto need = need_of(*policy, sizes, shape);
    if (need.total() * here <= limit.bytes) return;

    const auto text = [](double bytes) { return report::human_bytes(bytes); };
    std::string all;
    for (const auto& each : plan_memory(sizes, shape)) {
        if (each.strategy == "single") continue;
        all += fmt::format("{}{} {}{}", all.empty() ? "" : ", ", each.strategy,
                           text(each.total() * here),
                           each.total() * here <= limit.bytes ? " (fits)" : "");
    }
    throw error(errc::usage,
                fmt::format("{} needs {} for parameters, gradients and optimizer states of {} "
                            "rank{} on a host, the limit is {} ({})",
                            strategy, text(need.total() * here), here, here == 1 ? "" : "s",
                            text(limit.bytes), limit.source))
        .with_hint(fmt::format("before activations; with {} ranks: {}", shape.ranks, all));
}

SKEIN_INLINE std::string memory_notice(std::string_view strategy, flat_store& store,
                                       std::span<const at::Tensor> states,
                                       const memory_shape& shape) {
    const auto* policy = policy_of(strategy);
    if (policy == nullptr) return {};
    const auto text = [](double bytes) { return report::human_bytes(bytes); };
    const auto planned = need_of(*policy, sizes_of(store.units()), shape);
    const bool one_host = policy->inside_hosts || shape.hosts == 1;
    const bool own_part =
        store.is_sharded() && (policy->shard_parameters || (one_host && shape.one_copy));
    const auto counted = count_memory(store, states, own_part);
    return fmt::format("memory per rank: parameters {}, gradients {}, optimizer {}; by formula "
                       "{}, {}, {}{}; process {}",
                       text(counted.parameters), text(counted.gradients), text(counted.optimizer),
                       text(planned.parameters), text(planned.gradients), text(planned.optimizer),
                       planned.gathered > 0 ? ", gathered at most " + text(planned.gathered) : "",
                       text(proportional_set_size()));
}

} // namespace detail
} // namespace skein::train
