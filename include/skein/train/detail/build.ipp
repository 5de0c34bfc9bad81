// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/build.hpp>.

#include <skein/core/bytes.hpp>
#include <skein/core/check.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/spmd/rendezvous.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/sharded.hpp>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE build_scope*& this_threads_scope() noexcept {
    thread_local build_scope* scope = nullptr;
    return scope;
}

SKEIN_INLINE build_scope* build_scope::current() noexcept { return this_threads_scope(); }

SKEIN_INLINE build_scope::build_scope(build_plan plan) : plan_(std::move(plan)) {
    SKEIN_CHECK(current() == nullptr, "a model built inside of another one's build()");
    this_threads_scope() = this;
}

SKEIN_INLINE build_scope::~build_scope() { this_threads_scope() = nullptr; }

/// The part that is kept is all of a parameter that there is from now on.
SKEIN_INLINE void keep_part(cut_parameter& cut) {
    at::NoGradGuard no_grad;
    auto whole = cut.parameter.detach().contiguous().view({-1});
    cut.values = whole.narrow(0, cut.first, cut.count).clone();
    // As many dimensions as before, for who asks for them before drawing values; and no layer takes
    // it.
    auto nothing = cut.shape;
    if (nothing.empty()) nothing.push_back(0);
    nothing.back() = 0;
    cut.parameter.set_data(at::empty(nothing, cut.parameter.options()));
    cut.version = cut.parameter._version();
}

SKEIN_INLINE bool build_scope::stays_whole(torch::nn::Module& block,
                                           const std::string& name) const {
    if (!plan_.stays_whole) return false;
    for (const auto& inside : block.named_modules(std::string(), /*include_self=*/false))
        if (name.starts_with(inside.key() + ".") && plan_.stays_whole(*inside.value())) return true;
    return plan_.stays_whole(block);
}

SKEIN_INLINE void build_scope::cut(torch::nn::Module& block, unit_mark& mark) {
    if (plan_.shards == 1 || !plan_.is_block(block)) return;
    auto seen = cut_parameters(block); // of blocks inside
    for (const auto& item : block.named_parameters(true)) {
        const auto& p = item.value();
        if (!p.defined() || !p.requires_grad() || p.scalar_type() != at::kFloat ||
            stays_whole(block, item.key()) ||
            !seen.emplace(p.unsafeGetTensorImpl(), nullptr).second)
            continue;
        mark.cut().push_back({.parameter = p, .shape = p.sizes().vec()});
    }
    keep_own_rows(mark);
}

SKEIN_INLINE void build_scope::keep_own_rows(unit_mark& mark) {
    std::vector<placed_parameter> placed;
    std::int64_t size = 0;
    for (const auto& cut : mark.cut()) {
        const auto& p = cut.parameter;
        const auto row =
            std::max<std::int64_t>(1, p.dim() > 0 && p.size(0) > 0 ? p.numel() / p.size(0) : 1);
        placed.push_back({size, p.numel(), row});
        size += padded_count(p.numel());
        const auto values = p.detach().contiguous();
        checksum_ =
            crc32c({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()},
                   static_cast<std::uint32_t>(checksum_));
    }
    const auto own =
        cut_unit(placed, {0, size}, plan_.shards)[static_cast<std::size_t>(plan_.shard)];
    for (std::size_t i = 0; i < placed.size(); ++i) {
        const auto mine = overlap({placed[i].offset, placed[i].offset + placed[i].count}, own);
        auto& cut = mark.cut()[i];
        cut.first = mine.begin - placed[i].offset;
        cut.count = mine.size();
        keep_part(cut);
    }
}

SKEIN_INLINE std::unordered_map<const void*, cut_parameter*> cut_parameters(
    torch::nn::Module& module) {
    std::unordered_map<const void*, cut_parameter*> all;
    const auto add = [&](unit_mark* mark) {
        if (mark == nullptr) return;
        for (auto& cut : mark->cut()) all.emplace(cut.parameter.unsafeGetTensorImpl(), &cut);
    };
    add(dynamic_cast<unit_mark*>(&module));
    for (const auto& each : module.modules(/*include_self=*/false))
        add(dynamic_cast<unit_mark*>(each.get()));
    return all;
}

SKEIN_INLINE void forget_cuts(torch::nn::Module& module) {
    const auto forget = [](unit_mark* mark) {
        if (mark != nullptr) mark->cut().clear();
    };
    forget(dynamic_cast<unit_mark*>(&module));
    for (const auto& each : module.modules(/*include_self=*/false))
        forget(dynamic_cast<unit_mark*>(each.get()));
}

SKEIN_INLINE void compare_values(const context& ctx, torch::nn::Module& module) {
    if (!cut_parameters(module).empty()) return;
    byte_buffer mine(sizeof(std::uint32_t));
    std::uint32_t sum = 0;
    for (const auto& p : module.parameters()) {
        const auto values = p.detach().cpu().contiguous();
        sum =
            crc32c({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}, sum);
    }
    store_le<std::uint32_t>(mine.data(), sum);
    const auto all = gather_bytes(ctx, mine);
    const auto other = std::ranges::find_if(all, [&](const auto& one) { return one != all[0]; });
    if (other == all.end() || !ctx.is_first()) return;
    logging::warn("train",
                  fmt::format("rank {} has begun with other values of the model than rank 0, whose "
                              "values all go on with: seed the generator alike on every rank "
                              "before the model is made, or load the same file",
                              other - all.begin()));
}

SKEIN_INLINE void tell_peers(const context& ctx, std::exception_ptr why) {
    ctx.abort(to_error(why));
}

SKEIN_INLINE void tell_build_scope(torch::nn::Module& block, unit_mark& mark) {
    if (auto* const scope = build_scope::current()) scope->cut(block, mark);
}

SKEIN_INLINE build_plan plan_build(const context& ctx, const shard_policy& policy) {
    build_plan plan{.stays_whole = policy.precision.keeps_f32};
    if (ctx.world_size() == 1) return plan;
    if (!policy.inside_hosts) {
        plan.shards = ctx.world_size();
        plan.shard = ctx.rank();
        return plan;
    }
    const auto hosts = ctx.world()->exchange(ctx.group_options("build").name,
                                             as_bytes(std::string_view(ctx.world()->host())));
    plan.shards = 0;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
        if (as_text(hosts[r]) != ctx.world()->host()) continue;
        plan.shards += 1;
        if (r < static_cast<std::size_t>(ctx.rank())) plan.shard += 1;
    }
    return plan;
}

} // namespace detail

SKEIN_INLINE void for_each_parameter(
    torch::nn::Module& module, const std::function<void(const std::string&, at::Tensor&)>& visit) {
    const auto cut = detail::cut_parameters(module);
    std::unordered_set<const void*> seen;
    for (auto& item : module.named_parameters(true)) {
        auto p = item.value();
        if (!p.defined() || !seen.insert(p.unsafeGetTensorImpl()).second) continue;
        const auto found = cut.find(p.unsafeGetTensorImpl());
        if (found == cut.end()) {
            visit(item.key(), p);
            continue;
        }
        auto& part = *found->second;
        {
            at::NoGradGuard no_grad;
            auto whole = at::zeros(part.shape, p.options());
            whole.view({-1}).narrow(0, part.first, part.count).copy_(part.values);
            p.set_data(whole);
        }
        visit(item.key(), p);
        detail::keep_part(part);
    }
}

} // namespace skein::train
