// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/adaptive_batch.hpp>.

#include <skein/core/bytes.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/time.hpp>
#include <skein/train/detail/rule_state.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE std::vector<batch_change> read_batch_changes(std::string_view rows,
                                                          const std::string& where) {
    std::vector<batch_change> all;
    for (std::size_t line = 1; !rows.empty(); ++line) {
        const auto end = rows.find('\n');
        const auto row = rows.substr(0, end);
        rows = end == std::string_view::npos ? std::string_view() : rows.substr(end + 1);
        const auto refuse = [&](std::string what) {
            throw error(errc::malformed, std::move(what))
                .with_where(fmt::format("{}, line {}", where, line))
                .with_hint(
                    "give it the events.jsonl of a run of adaptive_batch, or whole rows of it");
        };
        if (row.empty()) continue;
        const auto parsed = parse_json(row, {.max_bytes = 1u << 20, .max_depth = 16});
        if (!parsed || !parsed->is_object()) refuse("no row of events");
        const auto is = [&](const char* key, std::string_view value) {
            const auto found = parsed->find(key);
            return found != parsed->end() && found->is_string() &&
                   found->template get_ref<const std::string&>() == value;
        };
        const bool of_micro_batches = is("what", "micro_batches");
        if (!is("rule", adaptive_batch::rule_name) ||
            !(of_micro_batches || is("what", "global_batch")))
            continue;
        const auto step = json_uint(*parsed, "step"), from = json_uint(*parsed, "from"),
                   to = json_uint(*parsed, "to");
        const auto is_count = [](const auto& number) {
            return number && *number >= 1 && *number <= std::uint64_t{1} << 53;
        };
        if (!step || !is_count(from) || !is_count(to)) refuse("a decision without its numbers");
        if (!all.empty() && *step < all.back().step) refuse("a step before the one above");
        all.push_back({*step, of_micro_batches, static_cast<std::int64_t>(*from),
                       static_cast<std::int64_t>(*to)});
    }
    return all;
}

} // namespace skein::train::detail

namespace skein {

namespace detail {
/// Steps whose times are left out behind a change: memory is touched, batches are made anew.
inline constexpr std::uint64_t uneven_steps = 2;
/// A step so many times longer or shorter than the mean is no step as the others: a machine that
/// slept, a clock that jumped. So many in a row are: the mean is out of date.
inline constexpr double strange_factor = 8.0;
inline constexpr std::uint64_t most_strange = 8;
} // namespace detail

SKEIN_INLINE adaptive_batch::adaptive_batch(adaptive_batch_options options)
    : options_(std::move(options)) {
    const auto& o = options_;
    using train::detail::require_option;
    require_option(o.max >= 1, rule_name, fmt::format("a max of {}", o.max),
                   "use the samples that a step may have at most, e.g. 16 times the first batch");
    require_option(o.lo >= 1, rule_name, fmt::format("a lo of {}", o.lo), "use 1 or more");
    require_option(o.hi >= 0 && (o.hi == 0 || o.hi >= o.lo), rule_name,
                   fmt::format("{} to {} samples of a rank at once", o.lo, o.hi),
                   "use a hi of at least lo, or 0 for no limit");
    require_option(o.lo <= o.max, rule_name,
                   fmt::format("a lo of {} samples with a max of {}", o.lo, o.max),
                   "use a lo of at most max");
    require_option(o.hysteresis >= 1 && std::isfinite(o.hysteresis), rule_name,
                   fmt::format("a hysteresis of {}", o.hysteresis), "use 1 or more, e.g. 1.05");
    require_option(o.every_seconds >= 0 && std::isfinite(o.every_seconds), rule_name,
                   fmt::format("a decision every {} seconds", o.every_seconds),
                   "use 0 or a positive time");
    require_option(o.warm_up >= 0 && std::isfinite(o.warm_up), rule_name,
                   fmt::format("a warm-up of {} steps", o.warm_up), "use 0 or more");
    require_option(o.smoothing > 0 && o.smoothing < 1, rule_name,
                   fmt::format("a smoothing of {}", o.smoothing),
                   "use a number between 0 and 1, e.g. 0.99");
    noise_ = goodput::gradient_noise(1, o.smoothing);
    if (!o.replay.empty()) {
        posix_disk disk;
        const auto rows = disk.read_whole(o.replay, 256u << 20).value();
        replay_ = train::detail::read_batch_changes(as_text(rows), o.replay);
        if (replay_.empty())
            throw error(errc::malformed, "no decision of adaptive_batch")
                .with_where(o.replay)
                .with_hint(
                    "a run without decisions is one with its first batch: leave the rule out");
    }
    looked_at_ = now();
}

SKEIN_INLINE void adaptive_batch::describe(train::description& to) const {
    to.add("max", options_.max)
        .add("lo", options_.lo)
        .add("hi", options_.hi)
        .add("accumulation", options_.accumulation)
        .add("rate", std::string(goodput::name_of(options_.rate)))
        .add("warm_up", options_.warm_up)
        .add("every_seconds", options_.every_seconds)
        .add("every_steps", static_cast<std::int64_t>(options_.every_steps))
        .add("hysteresis", options_.hysteresis)
        .add("smoothing", options_.smoothing)
        .add("replay", options_.replay);
}

SKEIN_INLINE train::gradient_look adaptive_batch::look() const {
    train::gradient_look out;
    out.preconditioned = options_.rate == goodput::rate_rule::adamscale;
    return out;
}

SKEIN_INLINE void adaptive_batch::on_start(const train::start_info& s) {
    using enum goodput::rate_rule;
    const bool is_adam = s.optimizer.find("adam") != std::string::npos;
    const bool is_sgd = s.optimizer == "sgd";
    const bool for_sgd = options_.rate == adascale || options_.rate == linear;
    const bool for_adam =
        options_.rate == adamscale || options_.rate == sqrt || options_.rate == legw;
    if ((is_adam && for_sgd) || (is_sgd && for_adam))
        throw error(errc::usage, fmt::format("the rate rule {} does not suit the optimizer {}",
                                             goodput::name_of(options_.rate), s.optimizer))
            .with_where(std::string(rule_name))
            .with_hint(is_adam ? "use adamscale, sqrt or legw; same leaves the rate alone"
                               : "use adascale or linear; same leaves the rate alone");
    if (s.samples > 0 && static_cast<std::uint64_t>(options_.max) > s.samples)
        throw error(errc::usage, fmt::format("a max of {} samples, the data set has {}",
                                             options_.max, s.samples))
            .with_where(std::string(rule_name))
            .with_hint("use at most as many as there are");
}

SKEIN_INLINE double adaptive_batch::rate(const train::rate_info& step) const {
    const double scale =
        std::max(1.0, static_cast<double>(step.batch) /
                          static_cast<double>(std::max<std::uint64_t>(1, step.first_batch)));
    return goodput::rate_factor(options_.rate, {.scale = scale,
                                                .gain = gain(scale),
                                                .progress = step.progress,
                                                .warm_up = options_.warm_up});
}

SKEIN_INLINE double adaptive_batch::now() const {
    return options_.clock ? options_.clock() : to_seconds(system_clock().now().time_since_epoch());
}

// ---- what is seen -------------------------------------------------------------------------------

SKEIN_INLINE goodput::step_shape adaptive_batch::shape_of(std::int64_t batch,
                                                          std::int64_t micros) const noexcept {
    const auto parts = static_cast<std::int64_t>(ranks_) * micros;
    return {.nodes = hosts_,
            .ranks = ranks_,
            .micro_batch = std::max<std::int64_t>(1, (batch + parts - 1) / parts),
            .accumulation = micros - 1};
}

SKEIN_INLINE void adaptive_batch::measure(const train::step_info& s) {
    const auto& t = s.timing;
    const auto before = static_cast<double>(s.micro_batches - 1);
    const double all = s.own.forward + s.own.backward + s.own.exposed + s.own.optimizer;
    const double micro = before > 0 ? t.early / before : t.forward + t.backward + s.own.optimizer;
    const double last = std::max(all - t.early, micro);
    const auto shape = shape_of(static_cast<std::int64_t>(s.batch), s.micro_batches);
    if (const double mean = times_.last_seconds(shape); mean > 0) {
        const bool is_strange =
            last > mean * detail::strange_factor || last * detail::strange_factor < mean;
        strange_ = is_strange ? strange_ + 1 : 0;
        if (is_strange && strange_ < detail::most_strange) return;
        if (is_strange) times_.forget(shape);
    }
    (void)times_.add(shape, micro, last);
}

SKEIN_INLINE train::decision adaptive_batch::on_step(const train::step_info& s) {
    if (s.squares != nullptr) {
        if (s.squares->size() != noise_.groups())
            noise_ = goodput::gradient_noise(s.squares->size(), options_.smoothing);
        (void)noise_.take(*s.squares,
                          static_cast<double>(s.batch) / static_cast<double>(first_batch_),
                          s.squares_are_differenced);
    }
    steps_ += 1;
    if (steps_ > detail::uneven_steps && static_cast<std::int64_t>(s.batch) == batch_ &&
        s.micro_batches == micros_)
        measure(s);
    if (!options_.replay.empty()) {
        auto out = replay(s);
        begin_plan(out.plan.value_or(*s.plan));
        return out;
    }
    begin_plan(*s.plan);
    if (s.word.size() != word_size || !(s.word[0] > static_cast<double>(heard_))) return {};
    std::ranges::copy(s.word, word_.begin());
    heard_ = static_cast<std::uint64_t>(word_[0]);
    auto next = *s.plan;
    next.global_batch = static_cast<std::int64_t>(word_[1]);
    next.micro_batches = static_cast<std::int64_t>(word_[2]);
    begin_plan(next);
    return {.plan = next,
            .why = fmt::format(
                "{}; a step of {} is expected to take "
                "{:.3g} ms, one of {} takes {:.3g} ms; goodput x {:.2f}",
                std::isfinite(word_[3]) ? fmt::format("noise scale {:.0f} samples", word_[3])
                                        : std::string("gradients are all noise"),
                next.global_batch, word_[4] * 1e3, s.plan->global_batch, word_[5] * 1e3, word_[6])};
}

SKEIN_INLINE void adaptive_batch::begin_plan(const train::step_plan& plan) {
    if (plan.global_batch == batch_ && plan.micro_batches == micros_) return;
    batch_ = plan.global_batch;
    micros_ = plan.micro_batches;
    steps_ = 0;
    looked_at_ = now();
}

// ---- what is decided ----------------------------------------------------------------------------

SKEIN_INLINE std::int64_t adaptive_batch::most_at_once() const noexcept {
    return options_.hi > 0 ? options_.hi : options_.max;
}

/// Samples of a step that this world can hold.
SKEIN_INLINE std::int64_t adaptive_batch::most() const noexcept {
    const auto parts = static_cast<std::int64_t>(shards_ > 0 ? shards_ : ranks_);
    if (options_.accumulation && shards_ == 0) return options_.max;
    return std::min(options_.max, most_at_once() * parts);
}

SKEIN_INLINE train::decision adaptive_batch::on_world(const train::world_change& world) {
    const auto& o = options_;
    ranks_ = world.world_size;
    hosts_ = world.hosts;
    shards_ = world.shards;
    first_batch_ = static_cast<std::int64_t>(world.first_batch);
    is_new_world_ = true;
    word_ = {}; // one that nobody has heard was for another world
    word_[0] = static_cast<double>(heard_);
    auto next = *world.plan;
    if (world.samples == 0)
        throw error(errc::not_supported, "not supported: adaptive_batch with a stream")
            .with_hint("use data with size() and batch(ids)");
    if (o.max < first_batch_)
        throw error(errc::usage,
                    fmt::format("a max of {} samples, the run begins with {}", o.max, first_batch_))
            .with_where(std::string(rule_name))
            .with_hint("give it a larger max, or the run a smaller batch");
    if (!o.accumulation && next.micro_batches > 1)
        throw error(errc::usage, fmt::format("{} micro-batches of each rank, without accumulation",
                                             next.micro_batches))
            .with_where(std::string(rule_name))
            .with_hint(
                "allow accumulation, with a hi of what a rank can hold: the rule chooses how "
                "many there are");
    const auto parts = static_cast<std::int64_t>(shards_ > 0 ? shards_ : ranks_);
    // What ranks can hold goes before what they should have at least.
    next.global_batch =
        std::min(std::max(next.global_batch, std::min(o.lo * parts, o.max)), most());
    if (o.accumulation && shards_ == 0) {
        const auto at_once = most_at_once() * ranks_;
        next.micro_batches = (next.global_batch + at_once - 1) / at_once;
        if (ranks_ == 1 && next.global_batch > first_batch_)
            next.micro_batches = std::max<std::int64_t>(2, next.micro_batches);
    }
    begin_plan(next);
    steps_ = 0;
    looked_at_ = now();
    return {.plan = next,
            .why = fmt::format("{} {} that compute{} {} to {} samples at once", ranks_,
                               ranks_ == 1 ? "worker" : "workers", ranks_ == 1 ? "s" : "", o.lo,
                               most_at_once())};
}

SKEIN_INLINE std::array<double, adaptive_batch::word_size> adaptive_batch::word() {
    const double part = is_new_world_ ? 0.1 : 1.0;
    const bool is_due =
        static_cast<double>(steps_) >= std::max(static_cast<double>(options_.every_steps) * part,
                                                static_cast<double>(detail::uneven_steps + 3)) &&
        now() - looked_at_ >= options_.every_seconds * part;
    if (is_due && options_.replay.empty() && noise_.steps() >= least_steps) look_for_better();
    return word_;
}

SKEIN_INLINE void adaptive_batch::look_for_better() {
    const auto current = shape_of(batch_, micros_);
    const double measured = times_.last_seconds(current);
    if (!(measured > 0)) return; // no step of this shape has had a time yet
    looked_at_ = now();
    steps_ = 0;
    is_new_world_ = false;
    const goodput::goodput_model model{goodput::fit(times_.means()), noise_.all(), first_batch_};
    const auto best = model.best({.nodes = hosts_,
                                  .ranks = ranks_,
                                  .most = std::max(most(), first_batch_),
                                  .micro_least = options_.lo,
                                  .micro_most = most_at_once(),
                                  .accumulation = options_.accumulation && shards_ == 0,
                                  .sees_parts = shards_ > 0});
    const double now_worth = model.goodput(current);
    if (!std::isfinite(best.goodput) || !(best.goodput > now_worth * options_.hysteresis)) return;
    const auto batch = std::min(best.shape.batch(), most());
    const auto micros =
        std::min(best.shape.accumulation + 1, std::max<std::int64_t>(1, batch / ranks_));
    if (batch == batch_ && micros == micros_) return;
    word_ = {static_cast<double>(heard_ + 1),
             static_cast<double>(batch),
             static_cast<double>(micros),
             noise_.noise_scale() * static_cast<double>(first_batch_),
             model.time.step_seconds(best.shape),
             model.time.step_seconds(current),
             best.goodput / now_worth};
}

// ---- replay -------------------------------------------------------------------------------------

SKEIN_INLINE train::decision adaptive_batch::replay(const train::step_info& s) const {
    auto next = *s.plan;
    for (const auto& each : replay_) {
        if (each.step != s.step) continue;
        auto& number = each.of_micro_batches ? next.micro_batches : next.global_batch;
        if (number == each.to) continue; // the world has brought it
        if (number != each.from)
            throw error(errc::mismatch,
                        fmt::format("the {} behind step {} goes from {} to {} there, here it is {}",
                                    each.of_micro_batches ? "micro_batches" : "global_batch",
                                    s.step, each.from, each.to, number))
                .with_where(options_.replay)
                .with_hint("replay the whole file of a run that began alike");
        number = each.to;
    }
    if (next == *s.plan) return {};
    return {.plan = next, .why = fmt::format("as {} has it", options_.replay)};
}

// ---- state --------------------------------------------------------------------------------------

SKEIN_INLINE std::string adaptive_batch::state() const {
    using train::detail::hexadecimal;
    const auto& m = noise_.state();
    std::string out = fmt::format("1 {} {} {} {} {}", heard_, m.sqr.size(), hexadecimal(m.weight),
                                  m.steps, m.is_differenced ? 1 : 0);
    for (std::size_t g = 0; g < m.sqr.size(); ++g)
        out += fmt::format(" {} {}", hexadecimal(m.sqr[g]), hexadecimal(m.var[g]));
    out += fmt::format(" {}", times_.state().size());
    for (const auto& [key, of] : times_.state()) {
        const auto [nodes, ranks, micro] = key;
        out += fmt::format(" {} {} {} {} {} {}", nodes, ranks, micro, hexadecimal(of.micro),
                           hexadecimal(of.last), hexadecimal(of.count));
    }
    return out;
}

SKEIN_INLINE void adaptive_batch::restore(std::string_view saved) {
    train::detail::state_words words(saved);
    int version = 0, differenced = 0;
    std::uint64_t heard = 0, groups = 0, shapes = 0;
    goodput::gradient_noise::memory m;
    bool right = words.read(version) && version == 1 && words.read(heard) && words.read(groups) &&
                 groups >= 1 && groups <= saved.size() && words.read(m.weight) &&
                 words.read(m.steps) && words.read(differenced);
    m.is_differenced = differenced != 0;
    m.sqr.resize(right ? groups : 1);
    m.var.resize(m.sqr.size());
    for (std::size_t g = 0; right && g < m.sqr.size(); ++g)
        right = words.read(m.sqr[g]) && words.read(m.var[g]);
    right = right && words.read(shapes) && shapes <= goodput::step_times::most_shapes;
    goodput::step_times::sums sums;
    for (std::uint64_t i = 0; right && i < shapes; ++i) {
        int nodes = 0, ranks = 0;
        std::int64_t micro = 0;
        goodput::step_times::sum of;
        right = words.read(nodes) && words.read(ranks) && words.read(micro) &&
                words.read(of.micro) && words.read(of.last) && words.read(of.count);
        sums[{nodes, ranks, micro}] = of;
    }
    if (!right || !words.empty()) train::detail::no_state(rule_name, saved);
    try {
        goodput::gradient_noise noise(m.sqr.size(), options_.smoothing);
        noise.restore(std::move(m));
        times_.restore(std::move(sums));
        noise_ = std::move(noise);
    } catch (const error&) {
        train::detail::no_state(rule_name, saved);
    }
    heard_ = heard;
    word_ = {};
    word_[0] = static_cast<double>(heard);
}

} // namespace skein
