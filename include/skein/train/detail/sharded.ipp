// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/detail/sharded.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/log.hpp>
#include <skein/core/random.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/dist/split.hpp>
#include <skein/spmd/rendezvous.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/shard_sums.hpp>
#include <skein/train/detail/unit_gatherer.ipp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

// ---- groups -------------------------------------------------------------------------------------

/// The first rank of this rank's host, as the number of the host.
SKEIN_INLINE int host_number(const context& ctx, const std::string& key) {
    const auto hosts = ctx.world()->exchange(key, as_bytes(std::string_view(ctx.world()->host())));
    std::map<std::string, int> first, ranks;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
        const auto host = std::string(as_text(hosts[r]));
        first.emplace(host, static_cast<int>(r));
        ranks[host] += 1;
    }
    for (const auto& [host, count] : ranks)
        if (count != ranks.begin()->second)
            throw error(errc::usage,
                        fmt::format("hybrid sharding needs as many ranks on every host: {} has {}, "
                                    "{} has {}",
                                    ranks.begin()->first, ranks.begin()->second, host, count))
                .with_hint("start equal numbers of workers per host, or choose FSDP");
    return first.at(ctx.world()->host());
}

SKEIN_INLINE shard_groups::shard_groups(const context& ctx, const shard_policy& policy)
    : world(ctx.comm()) {
    if (ctx.world_size() == 1) return;
    if (!policy.inside_hosts) {
        (policy.shard_states ? shard : replicas) = world;
        return;
    }
    const auto options = [&](const char* what) {
        return ctx.group_options(fmt::format("{}-{}", policy.name, what));
    };
    const auto keep = [](std::unique_ptr<dist::comm_thread>& own, dist::comm_thread*& use) {
        if (own && own->world_size() > 1) use = own.get();
    };
    host_ = host_number(ctx, options("hosts").name);
    own_shard_ = dist::split(*ctx.world(), host_, options("shard"));
    own_replicas_ = dist::split(*ctx.world(), own_shard_->rank(), options("replicas"));
    keep(own_shard_, shard);
    keep(own_replicas_, replicas);
}

SKEIN_INLINE std::unique_ptr<dist::comm_thread> shard_groups::another(const context& ctx) const {
    auto options = ctx.group_options("gather");
    if (host_ >= 0) return dist::split(*ctx.world(), host_, std::move(options));
    return dist::make_comm_thread(*ctx.world(), options);
}

SKEIN_INLINE bool shard_groups::is_saved_elsewhere() const noexcept {
    return replicas != nullptr && replicas->rank() > 0;
}

SKEIN_INLINE int shard_groups::first_replica() const {
    std::int64_t root = host_ == 0 ? replicas->rank() : 0; // hosts are numbered by their first rank
    replicas->all_reduce(dist::view_of(std::span(&root, 1)), dist::reduce_op::max).wait();
    return static_cast<int>(root);
}

SKEIN_INLINE void shard_groups::abort(const error& why) const noexcept {
    for (auto* const group : {world, own_shard_.get(), own_replicas_.get()})
        if (group != nullptr) group->abort(why);
}

SKEIN_INLINE void shard_groups::drain() const noexcept {
    for (auto* const group : {own_shard_.get(), own_replicas_.get(), world})
        if (group != nullptr) group->drain();
}

// ---- construction -------------------------------------------------------------------------------

SKEIN_INLINE sharded_parallel::sharded_parallel(const context& ctx, torch::nn::Module& module,
                                                const shard_policy& policy,
                                                const plan_function& plan)
    : ctx_(&ctx), module_(&module), policy_(policy),
      groups_(std::make_unique<shard_groups>(ctx, policy)) {
    try {
        build(module, plan);
    } catch (...) {
        abort(to_error(std::current_exception())); // the reason, before the groups end without one
        if (store_ && store_->is_mixed() && !one_copy_) {
            cast_inputs(module, *store_, /*on=*/false);
            store_->show_masters(/*whole=*/false);
        }
        throw;
    }
}

SKEIN_INLINE void sharded_parallel::build(torch::nn::Module& module, const plan_function& plan) {
    make_store(module, plan);
    states_.resize(store_->units().size());
    ready_.assign(store_->segments().size(), 0);
    for (const auto& f : store_->fixed()) has_buffers_ = has_buffers_ || f.is_buffer;

    constexpr auto nobody = static_cast<std::size_t>(-1);
    turn_.assign(states_.size(), nobody);
    if (policy_.shard_gradients && groups_->shard != nullptr) {
        std::map<std::int64_t, std::size_t> latest; // by place
        for (std::size_t u = states_.size(); u-- > 0;) {
            const auto [seen, fresh] = latest.try_emplace(store_->units()[u].grads_at, u);
            if (!fresh) turn_[u] = std::exchange(seen->second, u);
        }
        takes_turns_ = true;
        store_->ask_before([this](std::size_t segment) { return has_place(segment); });
    }
    find_marks(module);
    cast_inputs(module, *store_, /*on=*/true);
    if (reduces() || ctx_->elastic() != nullptr)
        store_->when_final([this](std::size_t segment) { ready(segment); });
    agree_on_origin();
    if (groups_->world == nullptr) return;
    spread_values();
    if (!policy_.shard_parameters || groups_->shard == nullptr || one_copy_) return;
    gatherer_ = std::make_shared<unit_gatherer>(module, *store_, groups_->another(*ctx_), policy_);
    gatherer_->drop_all();
    gatherer_->attach();
}

SKEIN_INLINE bool sharded_parallel::has_place(std::size_t segment) {
    return !takes_turns_ || phase_ != phase::reducing ||
           make_place(store_->segments()[segment].unit, /*wait=*/!gatherer_);
}

SKEIN_INLINE void sharded_parallel::find_marks(torch::nn::Module& module) {
    mark_of_.assign(store_->segments().size(), nullptr);
    std::vector<std::size_t> longest(mark_of_.size(), 0);
    for (const auto& item : module.named_modules(std::string(), /*include_self=*/false)) {
        auto mark = std::dynamic_pointer_cast<const unit_mark>(item.value());
        if (!mark) continue;
        const auto prefix = item.key() + ".";
        for (std::size_t i = 0; i < mark_of_.size(); ++i)
            if (prefix.size() > longest[i] && store_->segments()[i].name.starts_with(prefix)) {
                longest[i] = prefix.size();
                mark_of_[i] = mark.get();
            }
        marks_.push_back(std::move(mark));
    }
}

/// A tensor that keeps the group's memory.
SKEIN_INLINE at::Tensor adopt(std::shared_ptr<dist::group_memory> memory, std::int64_t elements,
                              at::ScalarType type) {
    auto* const data = memory->data();
    return at::from_blob(
        data, {elements}, [held = std::move(memory)](void*) mutable { held.reset(); },
        at::TensorOptions().dtype(type));
}

[[nodiscard]] SKEIN_INLINE std::size_t bytes_of(std::int64_t elements, at::ScalarType type) {
    return static_cast<std::size_t>(std::max<std::int64_t>(1, elements)) * c10::elementSize(type);
}

/// Where the group that reduces can work in place; none without such a group, and on a device.
SKEIN_INLINE std::function<at::Tensor(std::int64_t, at::ScalarType)> sharded_parallel::
    gradient_memory() const {
    auto* const reducing = groups_->shard != nullptr ? groups_->shard : groups_->replicas;
    if (reducing == nullptr || !home_of(*module_).is_cpu()) return {};
    return [reducing](std::int64_t elements, at::ScalarType type) {
        auto memory = reducing->allocate(bytes_of(elements, type), dist::memory_kind::own);
        return memory->everywhere() ? adopt(std::move(memory), elements, type)
                                    : make_flat_buffer(elements, type);
    };
}

SKEIN_INLINE void sharded_parallel::make_store(torch::nn::Module& module,
                                               const plan_function& plan) {
    store_options options;
    options.plan = plan;
    options.precision = policy_.precision;
    if (groups_->shard != nullptr) {
        options.shards = groups_->shard->world_size();
        options.shard = groups_->shard->rank();
        if (policy_.shard_gradients) options.gradient_places = 2;
        // Asked for before the values are copied in, hence the reference to `options`.
        if (home_of(module).is_cpu())
            options.parameter_memory = [&](std::int64_t elements, at::ScalarType type) {
                auto memory =
                    groups_->shard->allocate(bytes_of(elements, type), dist::memory_kind::common);
                one_copy_ = memory->everywhere();
                if (!one_copy_) return make_flat_buffer(elements, type);
                options.brings_values = groups_->shard->rank() == 0;
                return adopt(std::move(memory), elements, type);
            };
    }
    shards_ = options.shards;
    shard_ = options.shard;
    options.saved_elsewhere = groups_->is_saved_elsewhere();
    options.gradient_memory = gradient_memory();
    if (groups_->world != nullptr) { // before anything is shared that depends on it
        store_options only;
        only.plan = plan;
        only.precision = policy_.precision;
        only.only_layout = true;
        const flat_store alone(module, only);
        fnv1a h;
        h.number(alone.layout_hash());
        for (const auto& u : alone.units()) h.number(static_cast<std::uint64_t>(u.place.end));
        require_same(*ctx_, h.value(), "the model");
        compare_values(*ctx_, module);
    }
    store_ = std::make_unique<flat_store>(module, options);
}

/// Rank 0's values on every rank.
SKEIN_INLINE void sharded_parallel::spread_values() {
    if (one_copy_) {
        groups_->shard->barrier().wait(); // its first rank has brought them
        if (groups_->replicas != nullptr) {
            const int root = groups_->first_replica();
            for (const auto& u : store_->units()) {
                auto own = store_->params_P().narrow(0, u.own.begin, u.own.size());
                if (own.numel() == 0) continue;
                groups_->replicas->broadcast(bytes_of_flat(own), root).wait();
            }
            groups_->shard->barrier().wait();
            if (store_->is_mixed()) {
                store_->cast_owned();
                groups_->shard->barrier().wait();
            }
        }
    } else {
        if (std::ranges::none_of(store_->units(), &flat_unit::in_parts))
            broadcast(store_->params_P());
        else
            for (const auto& u : store_->units())
                if (!u.in_parts)
                    broadcast(store_->params_P().narrow(0, u.place.begin, u.place.size()));
        if (store_->is_mixed()) {
            store_->cast_all();
            for (const auto& u : store_->units()) { // of the masters what is owned stays
                if (u.type == at::kFloat) continue;
                drop_pages(store_->params_P(), {u.place.begin, u.own.begin});
                drop_pages(store_->params_P(), {u.own.end, u.place.end});
            }
        }
    }
    for (const auto& f : store_->fixed()) broadcast(f.tensor);
    store_->cast_fixed();
}

SKEIN_INLINE void sharded_parallel::broadcast(const at::Tensor& tensor) {
    at::NoGradGuard no_grad;
    auto flat = tensor.detach().contiguous();
    const auto bytes = bytes_of_flat(flat);
    if (bytes.count == 0) return;
    groups_->world->broadcast(bytes, 0).wait();
    if (!flat.is_same(tensor) && flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat);
}

SKEIN_INLINE sharded_parallel::~sharded_parallel() {
    const bool whole = !gatherer_ || gatherer_->is_whole();
    if (gatherer_) gatherer_->detach();
    if (groups_->world != nullptr) { // no exchange may outlive the memory it works on
        if (std::uncaught_exceptions() > 0 || (!finished_ && phase_ != phase::idle)) {
            const error why(errc::aborted,
                            fmt::format("rank {} leaves because of an exception", ctx_->rank()));
            abort(why);
        }
        groups_->drain();
        if (gatherer_) gatherer_->comm().drain();
    }
    store_->when_final({});
    store_->ask_before({});
    if (finished_) return;
    cast_inputs(*module_, *store_, /*on=*/false);
    if (!one_copy_) {
        if (store_->is_mixed() && whole) store_->show_masters(/*whole=*/false);
        return;
    }
    try { // after an error: what the other ranks do from here on is none of this module's business
        store_->leave_shared_memory();
    } catch (const error& why) {
        logging::warn("train",
                      fmt::format("the parameters stay shared with other ranks: {}", why.what()));
    }
}

// ---- a step -------------------------------------------------------------------------------------

SKEIN_INLINE dist::collective_tag sharded_parallel::tag(std::size_t unit,
                                                        dist::tag_phase part) const noexcept {
    return {static_cast<std::uint32_t>(unit), part, step_};
}

SKEIN_INLINE void sharded_parallel::begin_step() {
    step_ += 1;
    store_->expect_gradients();
    if (sums_) sums_->begin_step();
    for (auto& s : states_) s.kept = false;
    if (has_buffers_) spread_buffers();
}

SKEIN_INLINE void sharded_parallel::begin_micro(bool last) {
    end_micro();
    if (sums_) sums_->begin_shard();
    if (!reduces()) return;
    const bool each = policy_.shard_gradients && groups_->shard != nullptr;
    phase_ = last || each ? phase::reducing : phase::passing;
    left_ = crossed_ = states_.size();
    for (std::size_t u = 0; u < states_.size(); ++u) {
        auto& s = states_[u];
        s.missing = store_->units()[u].last - store_->units()[u].first;
        s.launched = s.taken = false;
    }
    std::fill(ready_.begin(), ready_.end(), 0);
    for (const auto& mark : marks_) mark->expect_nothing();
    if (gatherer_) gatherer_->begin_pass(step_);
}

/// The gradient of a segment is final.
SKEIN_INLINE void sharded_parallel::ready(std::size_t segment) {
    const auto& s = store_->segments()[segment];
    if (phase_ == phase::idle) return;
    if (mark_of_[segment] != nullptr && mark_of_[segment]->pending() > 0) return; // more to come
    if (std::exchange(ready_[segment], 1) != 0) {
        if (!states_[s.unit].launched) return; // added to what is in its place
        throw error(errc::not_supported,
                    "not supported: a gradient became final twice in one backward pass")
            .with_where(s.name)
            .with_hint("a custom function or a block that is computed again runs a backward pass "
                       "inside backward, over a weight that is used outside of it too");
    }
    if (--states_[s.unit].missing == 0 && gatherer_) gatherer_->unit_done(s.unit);
    if (phase_ != phase::reducing) return;
    while (left_ > 0 && states_[left_ - 1].missing == 0 &&
           make_place(left_ - 1, /*wait=*/!gatherer_))
        send(left_ - 1);
    cross(/*wait_until=*/states_.size());
}

/// Whether what had the unit's place before has left it. A rank that gathers must not wait in the
/// middle of a backward pass for what peers reduce: they may wait for its next gather.
SKEIN_INLINE bool sharded_parallel::make_place(std::size_t unit, bool wait) {
    const auto before = turn_[unit];
    if (before >= states_.size()) return true;
    auto& s = states_[before];
    if (s.taken) return true;
    if (!s.launched || (!wait && !s.reduced.done())) return false;
    take(before);
    return true;
}

/// Puts what is not in its place yet there, and sends the unit.
SKEIN_INLINE void sharded_parallel::send(std::size_t unit) {
    store_->settle_gradients(store_->units()[unit]);
    launch(unit);
}

SKEIN_INLINE void sharded_parallel::launch(std::size_t unit) {
    auto& s = states_[unit];
    const auto& u = store_->units()[unit];
    const auto view = view_of_flat(store_->grads_of(u));
    s.launched = true;
    left_ = unit;
    if (sums_) {
        s.reduced = sums_->send(u, tag(unit, dist::tag_phase::reduce));
        return;
    }
    if (groups_->shard == nullptr) {
        s.reduced = groups_->replicas->all_reduce(view, dist::reduce_op::sum,
                                                  tag(unit, dist::tag_phase::reduce));
        return;
    }
    s.reduced = groups_->shard->reduce_scatter_v(view, counts_of(u), dist::reduce_op::sum,
                                                 tag(unit, dist::tag_phase::reduce));
}

/// What is reduced inside the shard group goes on to the replicas, in the order of units.
///   wait_until  waits for the units down to this one; the others go on if they are done
SKEIN_INLINE void sharded_parallel::cross(std::size_t wait_until) {
    if (groups_->shard == nullptr || groups_->replicas == nullptr) return;
    for (; crossed_ > left_; --crossed_) {
        auto& s = states_[crossed_ - 1];
        if (crossed_ - 1 < wait_until && !s.reduced.done()) return;
        s.reduced.wait();
        const auto& u = store_->units()[crossed_ - 1];
        auto own = store_->grads_of(u).narrow(0, u.own.begin - u.place.begin, u.own.size());
        s.replicated = groups_->replicas->all_reduce(view_of_flat(own), dist::reduce_op::sum,
                                                     tag(crossed_ - 1, dist::tag_phase::reduce));
    }
}

/// Waits for the sums of a unit that has left, and puts them where the optimizer finds them.
SKEIN_INLINE void sharded_parallel::take(std::size_t unit) {
    auto& s = states_[unit];
    cross(/*wait_until=*/unit);
    s.reduced.wait();
    s.replicated.wait();
    s.taken = true;
    if (sums_) sums_->take(store_->units()[unit]);
    if (store_->keeps_own_grads())
        store_->take_gradients(store_->units()[unit], std::exchange(s.kept, true));
}

/// Sends what no hook has completed, and waits for all sums.
SKEIN_INLINE void sharded_parallel::end_micro() {
    if (phase_ == phase::idle) return;
    if (gatherer_) gatherer_->flush();
    if (phase_ == phase::reducing) {
        while (left_ > 0) {
            const auto unit = left_ - 1;
            (void)make_place(unit, /*wait=*/true);
            send(unit);
        }
        for (std::size_t u = states_.size(); u-- > 0;)
            if (!states_[u].taken) take(u);
    }
    if (gatherer_) gatherer_->end_pass();
    phase_ = phase::idle;
}

SKEIN_INLINE void sharded_parallel::finish_backward() {
    store_->take_writes();
    if (!reduces()) {
        store_->settle_gradients();
        if (sums_) sums_->finish();
        if (store_->keeps_own_grads())
            for (const auto& u : store_->units()) store_->take_gradients(u, /*add=*/false);
        return;
    }
    overlapped_ = states_.size() - left_;
    end_micro();
}

SKEIN_INLINE double sharded_parallel::squared_norm(double mine) {
    if (groups_->shard == nullptr) return mine;
    groups_->shard
        ->all_reduce(dist::view_of(std::span(&mine, 1)), dist::reduce_op::sum,
                     tag(0, dist::tag_phase::row))
        .wait();
    return mine;
}

SKEIN_INLINE void sharded_parallel::publish() {
    store_->cast_owned();
    if (groups_->shard == nullptr) return;
    if (one_copy_) {
        groups_->shard->barrier(tag(0, dist::tag_phase::publish)).wait();
    } else if (gatherer_) {
        gatherer_->publish(step_);
    } else {
        gather_all(/*masters=*/false);
    }
}

/// The new values of every unit; all ranks keep all.
SKEIN_INLINE void sharded_parallel::gather_all(bool masters) {
    std::vector<dist::ticket> ends;
    for (std::size_t u = 0; u < states_.size(); ++u) {
        const auto& unit = store_->units()[u];
        ends.push_back(gather_unit(*groups_->shard,
                                   masters ? store_->params_P() : store_->values_of(unit), unit,
                                   tag(u, dist::tag_phase::publish)));
    }
    for (const auto& end : ends) end.wait();
}

SKEIN_INLINE void sharded_parallel::sync_buffers() {
    store_->require_taken();
    store_->take_writes();
    spread_buffers();
}

SKEIN_INLINE void sharded_parallel::spread_buffers() {
    if (groups_->world == nullptr) return;
    for (const auto& f : store_->fixed())
        if (f.is_buffer) broadcast(f.tensor);
}

SKEIN_INLINE void sharded_parallel::begin_evaluation() {
    sync_buffers();
    if (gatherer_) gatherer_->gather_all();
}

SKEIN_INLINE void sharded_parallel::end_evaluation() {
    if (gatherer_) gatherer_->drop_all();
}

SKEIN_INLINE void sharded_parallel::abort(const error& why) noexcept {
    groups_->abort(why);
    if (gatherer_) gatherer_->comm().abort(why);
}

SKEIN_INLINE void sharded_parallel::finish() {
    store_->require_taken();
    store_->take_writes();
    if (gatherer_) {
        gatherer_->gather_all();
        gatherer_->detach();
    }
    cast_inputs(*module_, *store_, /*on=*/false);
    if (store_->is_mixed() && !one_copy_) return_masters();
    if (one_copy_) store_->leave_shared_memory();
    finished_ = true;
}

// ---- another generation -------------------------------------------------------------------------

/// What a rank brings along into a new generation.
struct rebind_word {
    std::uint64_t origin = 0, step = 0;
    std::int32_t shards = 1, shard = 0, now_shards = 1, now_shard = 0;
};

/// Nothing of an exchange that was under way is waited for, but for the threads that worked on it.
SKEIN_INLINE void sharded_parallel::give_up_pass() noexcept {
    abort(error(errc::aborted,
                fmt::format("rank {} goes on in another generation of the world", ctx_->rank())));
    groups_->drain();
    if (gatherer_) gatherer_->comm().drain();
    for (auto& s : states_) s.reduced = s.replicated = {};
    phase_ = phase::idle;
}

SKEIN_INLINE void sharded_parallel::agree_on_origin() {
    auto number = static_cast<std::int64_t>(system_random().next());
    if (groups_->world != nullptr)
        groups_->world->broadcast(dist::view_of(std::span(&number, 1)), 0).wait();
    origin_ = static_cast<std::uint64_t>(number);
}

SKEIN_INLINE void sharded_parallel::rebind() {
    give_up_pass();
    store_->take_writes();
    auto next = std::make_unique<shard_groups>(*ctx_, policy_);
    rebind_word mine{.origin = origin_, .step = step_, .shards = shards_, .shard = shard_};
    if (next->shard != nullptr) {
        mine.now_shards = next->shard->world_size();
        mine.now_shard = next->shard->rank();
    }
    const auto words = gather_bytes(*ctx_, wire::encode(mine));
    for (std::size_t r = 0; r < words.size(); ++r) {
        const auto word = wire::decode<rebind_word>(words[r]);
        const bool joins = ctx_->elastic() != nullptr && shards_ == 1 && word.has_value();
        if (!joins && (!word || word->origin != origin_))
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} was not there when this training "
                                    "began, and joins it",
                                    r))
                .with_hint("resume all ranks from the last checkpoint");
        if (word->now_shards != word->shards || word->now_shard != word->shard)
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} has part {} of {}, and would have {} "
                                    "of {}: the parts of lost ranks are lost",
                                    r, word->shard, word->shards, word->now_shard,
                                    word->now_shards))
                .with_hint("resume from the last checkpoint, which fits any number of ranks");
        step_ = std::max(step_, word->step); // tags agree again
        if (r == 0) origin_ = word->origin;  // its values come from those who have them
    }
    const auto old =
        std::exchange(groups_, std::move(next)); // its memory is used until the next line
    store_->move_gradients(gradient_memory(), groups_->is_saved_elsewhere());
    if (sums_) sums_->rebind(groups_->replicas);
    if (gatherer_) gatherer_->rebind(groups_->another(*ctx_));
    if (one_copy_ && groups_->shard != nullptr) groups_->shard->barrier().wait();
}

/// The module has all float32 values.
SKEIN_INLINE void sharded_parallel::return_masters() {
    if (groups_->shard != nullptr) gather_all(/*masters=*/true);
    store_->show_masters(/*whole=*/true);
}

SKEIN_INLINE std::size_t sharded_parallel::buckets() const noexcept {
    return reduces() ? states_.size() : 0;
}

} // namespace skein::train::detail
