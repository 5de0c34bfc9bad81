// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/optimizer.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/state_memory.hpp>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace skein::train {

SKEIN_INLINE description describe(const optimizer_options& options) {
    auto out = options.how.describe();
    std::size_t number = 0;
    for (const auto& g : options.more.groups) {
        const auto name = [&](const char* what) {
            return fmt::format("{} of parameter group {}", what, number);
        };
        number += 1;
        out.add(name("lr_scale"), g.lr_scale).add(name("frozen"), g.frozen);
        if (g.weight_decay) out.add(name("weight decay"), *g.weight_decay);
    }
    if (const auto& a = options.more.average) {
        out.add("decay of the average", a->decay).add("warm-up of the average", a->warm_up);
        out.add("evaluates the average", a->evaluate).add("keeps the average", a->keep);
    }
    return out;
}

SKEIN_INLINE flat_optimizer::flat_optimizer(optimizer_options options, flat_store& store)
    : options_(std::move(options)), store_(&store) {
    const auto& more = options_.more;
    options_.how.check();
    const auto where = store.params_P().device();
    if (!where.is_cpu()) require_works_on(where);
    effects_ = make_effects();
    joins_ = joins_decays();
    for (const auto& state : options_.how.states()) {
        if (state.name.empty() || state.name == "ema" || state.name.find('.') != std::string::npos)
            throw error(errc::usage,
                        fmt::format("optimizer {} has a state named '{}'", name(), state.name))
                .with_hint("use a name without dots, other than ema");
        states_.emplace_back(state.name, make_state_buffer(more.states_in, store.owned(), where));
        if (state.initial != 0.0) states_.back().second.fill_(state.initial);
    }
    own_states_ = states_.size();
    if (more.average) {
        average_.emplace(*more.average, store, more.states_in);
        states_.emplace_back("ema", average_->values());
    }
    groups_ = make_groups({});
}

/// Refuses by name what reads the host's memory.
SKEIN_INLINE void flat_optimizer::require_works_on(at::Device where) const {
    const auto& more = options_.more;
    const auto what = !options_.how.works_on_devices() ? "optimizer " + name()
                      : more.average                   ? std::string("an average of the weights")
                      : !more.states_in.empty()        ? std::string("states in files")
                                                       : std::string();
    if (what.empty()) return;
    throw error(errc::not_supported, fmt::format("not supported: {} on {}", what, where.str()))
        .with_hint("train on the CPU, or with AdamW, Adam or SGD and without an average and files");
}

SKEIN_INLINE void flat_optimizer::step(double lr, double grad_scale,
                                       std::span<const double> present, double clip_value) {
    store_->take_writes(/*always=*/false);
    // Nothing here is recorded: past autograd's checks of every tensor, which cost more than short
    // runs.
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    steps_ += 1;
    const bool all = std::ranges::all_of(present, [](double p) { return p != 0.0; });
    if (!all && left_out_.empty()) left_out_.assign(store_->segments().size(), 0);
    if (left_out_.empty()) {
        for (const auto& g : groups_) update(g, lr, grad_scale, clip_value);
    } else {
        for (std::size_t i = 0; i < present.size(); ++i)
            if (present[i] == 0.0) left_out_[i] += 1;
        for (const auto& g : make_groups(present)) update(g, lr, grad_scale, clip_value);
    }
    if (average_) average_->update(steps_);
}

SKEIN_INLINE void flat_optimizer::rebind() { groups_ = make_groups({}); }

SKEIN_INLINE void flat_optimizer::update(const group& g, double lr, double grad_scale,
                                         double clip_value) const {
    if (clip_value > 0.0 && !store_->params_P().device().is_cpu()) {
        const double scale = std::exchange(grad_scale, 1.0);
        for (auto grads : g.runs.grads) grads.div_(scale).clamp_(-clip_value, clip_value);
    } else if (clip_value > 0.0) {
        const auto scale = static_cast<float>(std::exchange(grad_scale, 1.0));
        const auto limit = static_cast<float>(clip_value);
        g.runs.for_each([=](const run_part& part) {
            for (auto& x : part.grads) x = std::clamp(x / scale, -limit, limit);
        });
    }
    update_values values{.step = steps_ - g.left_out,
                         .lr = lr * g.effect.lr_scale,
                         .weight_decay = g.effect.weight_decay,
                         .grad_scale = grad_scale};
    for (const auto& other : g.others) copy(g.runs, other, /*back=*/false);
    options_.how.update(g.runs, values);
    for (const auto& other : g.others) {
        values.weight_decay = other.weight_decay;
        options_.how.update(other.copies, values);
        copy(g.runs, other, /*back=*/true);
    }
}

/// Parameters, gradients and states of what is set aside, out of the run; or what changed of them
/// back.
SKEIN_INLINE void flat_optimizer::copy(const update_runs& run, const aside& part, bool back) {
    struct pair {
        float *run, *copy;
    };
    std::vector<pair> arrays;
    const auto add = [&](const at::Tensor& of_run, const at::Tensor& of_copy) {
        arrays.push_back({static_cast<float*>(of_run.mutable_data_ptr()),
                          static_cast<float*>(of_copy.mutable_data_ptr())});
    };
    add(run.params[0], part.copies.params[0]);
    if (!back) add(run.grads[0], part.copies.grads[0]);
    for (std::size_t k = 0; k < run.states.size(); ++k)
        add(run.states[k][0], part.copies.states[k][0]);
    const auto count = static_cast<std::int64_t>(part.patches.size());
    const auto fetch =
        [&](const patch& p) { // the processor does not foresee where the next one lies
            for (const auto& a : arrays)
                for (std::int64_t k = 0; k < std::min<std::int64_t>(p.size, 128);
                     k += flat_alignment)
                    __builtin_prefetch(a.run + p.begin + k, /*write=*/1);
        };
    at::parallel_for(0, count, 64, [&](std::int64_t first, std::int64_t last) {
        const auto patches = std::span(part.patches).first(static_cast<std::size_t>(last));
        constexpr std::size_t ahead = 4;
        for (auto i = static_cast<std::size_t>(first); i < patches.size(); ++i) {
            const auto& p = patches[i];
            if (i + ahead < patches.size()) fetch(patches[i + ahead]);
            const auto bytes = static_cast<std::size_t>(p.size) * sizeof(float);
            for (const auto& a : arrays) {
                auto* const in_run = a.run + p.begin;
                auto* const in_copy = a.copy + p.at;
                std::memcpy(back ? in_run : in_copy, back ? in_copy : in_run, bytes);
            }
        }
    });
}

SKEIN_INLINE void flat_optimizer::set_left_out(std::vector<std::uint64_t> steps) {
    const bool none = std::ranges::all_of(steps, [](std::uint64_t n) { return n == 0; });
    left_out_ = none ? std::vector<std::uint64_t>() : std::move(steps);
}

SKEIN_INLINE std::vector<update_effect> flat_optimizer::make_effects() const {
    std::vector<parameter_info> parameters;
    for (const auto& s : store_->segments()) parameters.push_back({s.name, s.shape});
    return effects_of(options_.more.groups, parameters,
                      [&](const parameter_info& p) { return options_.how.weight_decay(p.dims()); });
}

SKEIN_INLINE std::uint64_t flat_optimizer::effect_hash() const {
    fnv1a hash;
    for (const auto& e : effects_) {
        hash.number(std::bit_cast<std::uint64_t>(e.lr_scale));
        hash.number(std::bit_cast<std::uint64_t>(e.weight_decay));
        hash.number(e.frozen ? 1u : 0u);
    }
    return hash.value();
}

/// Kernels are called for every run, so that many short ones cost more than their elements.
SKEIN_INLINE bool flat_optimizer::joins_decays() const {
    constexpr std::int64_t short_parameter = 1 << 14;
    const auto count = static_cast<std::int64_t>(effects_.size());
    const bool differ = std::ranges::any_of(effects_, [&](const update_effect& e) {
        return e.weight_decay != effects_.front().weight_decay;
    });
    return differ && store_->trainable() < count * short_parameter &&
           store_->params_P().device().is_cpu();
}

SKEIN_INLINE void flat_optimizer::push(group& to, const owned_piece& run) const {
    std::vector<at::Tensor> states;
    for (std::size_t k = 0; k < own_states_; ++k)
        states.push_back(states_[k].second.narrow(0, run.at, run.padded));
    to.runs.push(store_->params_P().narrow(0, run.flat, run.padded), store_->own_grads(run),
                 std::move(states));
}

/// Neighbours of different decay, in stretches that are still in a cache when what was set aside
/// follows. Of each, the elements of the decay that most have are updated in place, and so are,
/// wrongly, the others: what comes of these is replaced by the update of their copy.
SKEIN_INLINE void flat_optimizer::join(std::vector<group>& groups,
                                       std::span<const owned_piece> run) {
    const auto begin = run.front().flat, end = run.back().flat + run.back().padded;
    auto piece = run.begin();
    for (auto first = begin; first < end; first += stretch) {
        auto part = run.front();
        part.flat = first;
        part.at += first - begin;
        part.padded = std::min(stretch, end - first);
        auto& to = groups.emplace_back(
            group{effects_[part.segment], left_out_.empty() ? 0 : left_out_[part.segment]});
        push(to, part);
        const auto last = first + part.padded;
        for (; piece != run.end() && piece->flat < last; ++piece) {
            const auto from = std::max(piece->flat, first);
            const auto upto = std::min(piece->flat + piece->padded, last);
            const double decay = effects_[piece->segment].weight_decay;
            auto of = std::ranges::find(to.others, decay, &aside::weight_decay);
            if (of == to.others.end()) of = to.others.insert(of, aside{decay});
            of->patches.push_back({from - first, upto - from, of->size});
            of->size += upto - from;
            if (piece->flat + piece->padded > last) break; // the rest of it in the next stretch
        }
        set_aside(to);
    }
}

/// All but the most are set aside.
SKEIN_INLINE void flat_optimizer::set_aside(group& from) {
    const auto most = std::ranges::max_element(from.others, {}, &aside::size);
    from.effect.weight_decay = most->weight_decay;
    from.others.erase(most);
    if (!copies_.defined() && !from.others.empty())
        copies_ = make_flat_buffer(std::min(stretch, store_->owned()) *
                                   static_cast<std::int64_t>(2 + own_states_));
    std::int64_t at = 0;
    for (auto& other : from.others) {
        const auto next = [&] {
            return copies_.narrow(0, std::exchange(at, at + other.size), other.size);
        };
        auto params = next(), grads = next();
        std::vector<at::Tensor> states;
        for (std::size_t k = 0; k < own_states_; ++k) states.push_back(next());
        other.copies.push(std::move(params), std::move(grads), std::move(states));
    }
}

/// Neighbours of equal effect, and equally often left out, form one run; runs of a kind form a
/// group.
SKEIN_INLINE std::vector<flat_optimizer::group> flat_optimizer::make_groups(
    std::span<const double> present) {
    const auto& pieces = store_->pieces();
    const auto idle = [&](std::size_t i) {
        return effects_[i].frozen || (!present.empty() && present[i] == 0.0);
    };
    const auto missed = [&](std::size_t i) { return left_out_.empty() ? 0 : left_out_[i]; };
    std::vector<group> groups;
    const auto group_of = [&](std::size_t i) -> group& {
        for (auto& g : groups)
            if (g.effect == effects_[i] && g.left_out == missed(i)) return g;
        return groups.emplace_back(group{effects_[i], missed(i)});
    };
    const auto alike = [&](const owned_piece& a, const owned_piece& b) {
        const auto i = a.segment, k = b.segment;
        auto effect = effects_[k];
        if (joins_) effect.weight_decay = effects_[i].weight_decay;
        return a.flat + a.padded == b.flat && a.at + a.padded == b.at && effect == effects_[i] &&
               idle(k) == idle(i) && missed(k) == missed(i);
    };
    for (std::size_t i = 0; i < pieces.size();) {
        auto run = pieces[i]; // with all behind it that take the same update
        auto end = i + 1;
        for (; end < pieces.size() && alike(pieces[end - 1], pieces[end]); ++end)
            run.padded += pieces[end].padded;
        const bool updated = !idle(run.segment);
        if (updated && joins_) join(groups, std::span(pieces).subspan(i, end - i));
        if (updated && !joins_) push(group_of(run.segment), run);
        i = end;
    }
    return groups;
}

} // namespace skein::train
