// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strategy, module and callbacks of one session behind detail/session_seam.hpp's virtual calls.
// Included by train/trainer.hpp only.

namespace skein::train::detail {

/// "DDP" of a strategy that says so.
template <class Strategy>
[[nodiscard]] std::string strategy_name_of() {
    if constexpr (requires { std::string(Strategy::name); })
        return std::string(Strategy::name);
    else
        return {};
}

/// The strategy keeps what it has where the model is.
template <class Strategy>
inline constexpr bool works_on_devices = false;
template <class Strategy>
    requires requires { requires Strategy::works_on_devices; }
inline constexpr bool works_on_devices<Strategy> = true;

/// What the strategy computes in; float32 for one that does not say.
template <class Strategy>
[[nodiscard]] precision_policy precision_used_by() {
    if constexpr (requires { Strategy::used_precision(); })
        return Strategy::used_precision();
    else
        return {};
}

/// What a callback is called in events.jsonl.
template <class C>
[[nodiscard]] std::string rule_name_of(const C&) {
    if constexpr (requires { std::string(C::rule_name); })
        return std::string(C::rule_name);
    else
        return type_name(typeid(C));
}

/// What each callback is called, and its settings where it says them by
/// `void describe(description&) const`.
template <class... Callbacks>
[[nodiscard]] std::vector<description> rules_of(const std::tuple<Callbacks...>& callbacks) {
    std::vector<description> all;
    const auto add = [&](const auto& c) {
        auto& one = all.emplace_back();
        one.name = rule_name_of(c);
        if constexpr (requires { c.describe(one); }) c.describe(one);
    };
    std::apply([&](const auto&... c) { (add(c), ...); }, callbacks);
    return all;
}

/// States of the callbacks that keep one, by the names of their types; and back.
template <class... Callbacks>
[[nodiscard]] std::vector<callback_state> states_of(const std::tuple<Callbacks...>& callbacks) {
    std::vector<callback_state> all;
    const auto add = [&](const auto& c) {
        using type = std::remove_cvref_t<decltype(c)>;
        if constexpr (keeps_state<type>) all.push_back({type_name(typeid(type)), c.state()});
    };
    std::apply([&](const auto&... c) { (add(c), ...); }, callbacks);
    return all;
}
template <class... Callbacks>
void restore_states(std::tuple<Callbacks...>& callbacks, const std::vector<callback_state>& saved) {
    const auto take = [&](auto& c) {
        using type = std::remove_cvref_t<decltype(c)>;
        if constexpr (keeps_state<type>)
            for (const auto& one : saved)
                if (type_name(typeid(type)) == one.name) c.restore(one.state);
    };
    std::apply([&](auto&... c) { (take(c), ...); }, callbacks);
}

/// The member of a callback that hears of it, and the steps that are finished then.
[[nodiscard]] inline const char* member_of(const start_info&) noexcept { return "on_start"; }
[[nodiscard]] inline const char* member_of(const step_info&) noexcept { return "on_step"; }
[[nodiscard]] inline const char* member_of(const eval_info&) noexcept { return "on_eval"; }
[[nodiscard]] inline const char* member_of(const checkpoint_info&) noexcept {
    return "on_checkpoint";
}
[[nodiscard]] inline const char* member_of(const fit_result&) noexcept { return "on_end"; }
template <class Event>
[[nodiscard]] std::uint64_t step_of(const Event& event) noexcept {
    return event.step;
}
[[nodiscard]] inline std::uint64_t step_of(const start_info& s) noexcept { return s.first_step; }
[[nodiscard]] inline std::uint64_t step_of(const fit_result& s) noexcept { return s.steps; }

template <class Strategy, class... Callbacks>
class parts_of final : public session_parts {
public:
    parts_of(context& ctx, torch::nn::Module& module, std::tuple<Callbacks...>& callbacks)
        : module_(module), callbacks_(callbacks), ctx_(ctx), strategy_(ctx, module) {}

    torch::nn::Module& module() override { return module_; }
    std::string strategy_name() const override { return strategy_name_of<Strategy>(); }
    precision_policy precision() const override { return precision_used_by<Strategy>(); }
    flat_store& store() override { return strategy_.store(); }
    void begin_step() override { strategy_.begin_step(); }
    void begin_micro(bool last) override { strategy_.begin_micro(last); }
    void finish_backward() override { strategy_.finish_backward(); }
    double squared_norm(double mine) override { return strategy_.squared_norm(mine); }
    void publish() override { strategy_.publish(); }
    void sync_buffers() override { strategy_.sync_buffers(); }
    void begin_evaluation() override { strategy_.begin_evaluation(); }
    void end_evaluation() override { strategy_.end_evaluation(); }
    void abort(const error& why) noexcept override { strategy_.abort(why); }
    void finish() override { strategy_.finish(); }
    void rebind() override { strategy_.rebind(); }
    void sum_by_shards(int shards) override {
        if constexpr (requires { strategy_.sum_by_shards(shards); })
            strategy_.sum_by_shards(shards);
        else
            throw error(errc::not_supported,
                        fmt::format("not supported: logical shards with {}", strategy_name()))
                .with_hint("train with DDP, which is for one process, too, or without "
                           "scaling.logical_shards");
    }
    bool wait_for_pieces() override {
        if constexpr (requires { strategy_.wait_for_pieces(); }) return strategy_.wait_for_pieces();
        return false;
    }

    void tell(const start_info& event) override { tell_all(event); }
    void tell(const step_info& event, decisions& to) override { ask_all(event, to); }
    void tell(const eval_info& event, decisions& to) override { ask_all(event, to); }
    bool judges() const override { return (detail::judges<Callbacks> || ...); }
    ruling judge(const step_info& event, std::string& rule) override {
        ruling strongest;
        auto now = event;
        word_hand hand{event};
        each([&](auto& c) {
            hand.give(now, own_word<decltype(c)>);
            auto one = heard(c, now, "on_agreed", [&] { return detail::judge(c, now); });
            if (one.what <= strongest.what) return;
            strongest = std::move(one);
            rule = rule_name_of(c);
        });
        return strongest;
    }
    bool plans() const override { return (detail::plans<Callbacks> || ...); }
    bool changes_batch() const override { return (detail::changes_batch<Callbacks>() || ...); }
    double rate(const rate_info& info) const override {
        double all = 1.0;
        each([&](const auto& c) {
            all *= heard(c, ctx_.rank(), info.step, "rate",
                         [&] { return require_factor("rate", detail::rate_of(c, info)); });
        });
        return all;
    }
    std::function<double(double)> gain() const override {
        std::function<double(double)> out;
        each([&](const auto& c) {
            if constexpr (detail::measures_gain<std::remove_cvref_t<decltype(c)>>)
                out = [&c](double scale) {
                    return require_factor(rule_name_of(c) + "'s gain", c.gain(scale));
                };
        });
        return out;
    }
    void ask_word(bool is_first, std::vector<double>& word) override {
        word.assign(words, 0.0);
        if (!is_first) return;
        auto to = word.begin();
        each([&](auto& c) {
            if constexpr (own_word<decltype(c)> > 0) {
                const std::array<double, own_word<decltype(c)>> said = c.word();
                to = std::ranges::copy(said, to).out;
            }
        });
    }
    void tell(const world_change& event, decisions& to) override {
        auto now = event;
        each([&](auto& c) {
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (detail::hears_worlds<type>()) {
                now.plan = &to.plan;
                decide(c, to, heard(c, ctx_.rank(), event.step, "on_world", [&] {
                           return c.on_world(now);
                       }));
            }
        });
    }
    void tell(const checkpoint_info& event) override { tell_all(event); }
    void tell(const fit_result& event) override { tell_all(event); }

    std::string stop_reason() const override {
        std::string reason;
        each([&](const auto& c) {
            if constexpr (requires { std::string(c.stop_reason()); })
                if (reason.empty()) reason = std::string(c.stop_reason());
        });
        return reason;
    }
    std::vector<callback_state> states() const override { return states_of(callbacks_); }
    void restore(const callback_state& saved) override { restore_states(callbacks_, {saved}); }

private:
    static constexpr std::size_t words = (detail::word_size_of<Callbacks>() + ... + 0);
    static constexpr std::size_t measuring =
        (std::size_t(detail::measures_gain<Callbacks>) + ... + 0);
    static_assert(words <= 8, "the words of all callbacks have 8 numbers at most");
    static_assert(measuring <= 1, "one callback at most may measure the gain");
    template <class C>
    static constexpr std::size_t own_word = detail::word_size_of<std::remove_cvref_t<C>>();

    /// Hands each callback in its turn what it has said itself; of the words of all.
    struct word_hand {
        std::span<const double> rest;
        explicit word_hand(const step_info& event) noexcept : rest(event.word) {}
        explicit word_hand(const eval_info&) noexcept {}
        void give(step_info& event, std::size_t count) noexcept {
            event.word = rest.first(std::min(rest.size(), count));
            rest = rest.subspan(event.word.size());
        }
        void give(eval_info&, std::size_t) noexcept {}
    };

    template <class Call>
    void each(Call call) const {
        std::apply([&](auto&... c) { (call(c), ...); }, callbacks_);
    }
    /// What a callback throws says which, on which rank and at which step.
    template <class C, class Event, class Call>
    static auto heard(const C& c, const Event& event, const char* member, Call call) {
        return heard(c, event.rank, step_of(event), member, call);
    }
    template <class C, class Call>
    static auto heard(const C& c, int rank, std::uint64_t step, const char* member, Call call) {
        try {
            return call();
        } catch (...) {
            callback_failed(fmt::format("{} of {}", member, rule_name_of(c)), rank, step);
        }
    }
    template <class Event>
    void tell_all(const Event& event) {
        each([&](auto& c) { heard(c, event, member_of(event), [&] { detail::tell(c, event); }); });
    }
    template <class Event>
    void ask_all(Event event, decisions& to) {
        event.plan = &to.plan;
        word_hand hand{event};
        each([&](auto& c) {
            hand.give(event, own_word<decltype(c)>);
            const auto one =
                heard(c, event, member_of(event), [&] { return detail::tell(c, event); });
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (detail::plans<type>)
                decide(c, to, one);
            else if (one.act == action::stop)
                to.wanted = action::stop;
        });
    }

    /// What one callback decides.
    template <class C>
    static void decide(const C& c, decisions& to, const decision& one) {
        if (one.act == action::stop) to.wanted = action::stop;
        const auto next = one.plan.value_or(to.plan);
        const bool stops = one.act == action::stop;
        if (next == to.plan && !stops) return;
        to.made.push_back({rule_name_of(c), to.plan, next, stops, one.why});
        to.plan = next;
    }

    torch::nn::Module& module_;
    std::tuple<Callbacks...>& callbacks_;
    const context& ctx_;
    Strategy strategy_;
};

// ---- calls of fit() that cannot be meant --------------------------------------------------------

template <class T>
concept optimizer_argument = std::convertible_to<T, optimizer_options>;
template <class T>
concept schedule_argument = std::convertible_to<T, schedule>;
/// torch::data has get() or get_batch(), and a size that may be unknown.
template <class T>
concept torch_data = requires(T& data) { data.get_batch(std::vector<std::size_t>{}); } ||
                     requires(T& data) { data.get(std::size_t{}); };

template <class... Args>
struct fit_call {
    static constexpr bool right = false;
};
template <class Model, class Optimizer, class Schedule, class Loss, class Data, class HeldOut,
          class... More>
struct fit_call<Model, Optimizer, Schedule, Loss, Data, HeldOut, More...> {
    static constexpr bool right = std::is_lvalue_reference_v<Model> &&
                                  optimizer_argument<Optimizer> && schedule_argument<Schedule> &&
                                  train_input<std::remove_reference_t<Data>> &&
                                  evaluation_input<HeldOut> && (evaluation_input<More> && ...);
};
template <class... Args>
concept well_formed_fit = fit_call<Args&&...>::right;

#define SKEIN_FIT_IS "it is fit(model, optimizer, schedule, loss, data, held_out): "

/// The first thing that is wrong, from left to right.
template <class... Args>
consteval void explain_fit() {
    using all = std::tuple<Args&&..., void, void, void, void, void, void>;
    using model = std::tuple_element_t<0, all>;
    using optimizer = std::tuple_element_t<1, all>;
    using schedule_ = std::tuple_element_t<2, all>;
    using data = std::tuple_element_t<4, all>;
    using held_out = std::tuple_element_t<5, all>;
    constexpr auto count = sizeof...(Args);
    if constexpr (count < 1 || !std::is_lvalue_reference_v<model>)
        static_assert(count > 99,
                      SKEIN_FIT_IS "the model must be a variable, it is trained in place");
    else if constexpr (count < 2 || !optimizer_argument<optimizer>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the second argument must be an optimizer, e.g. skein::AdamW{.weight_decay = 0.1}");
    else if constexpr (count < 3 || !schedule_argument<schedule_>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the third argument must be a schedule of the learning rate, a function of the "
            "step, e.g. skein::train::constant_rate{1e-3}; the loss comes behind it");
    else if constexpr (count < 5)
        static_assert(count > 99, SKEIN_FIT_IS "loss and data are missing");
    else if constexpr (torch_data<std::remove_cvref_t<data>> &&
                       !train_input<std::remove_reference_t<data>>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "a dataset of torch::data is no data here: wrap it in a struct with size() and "
            "batch(std::span<const std::uint64_t> ids), see skein/train/input.hpp");
    else if constexpr (!train_input<std::remove_reference_t<data>>)
        static_assert(
            count > 99, SKEIN_FIT_IS
            "the data must have size() and batch(std::span<const std::uint64_t> ids), or be "
            "a stream with next(), state() and restore(); see skein/train/input.hpp");
    else if constexpr (count < 6 || !evaluation_input<held_out>)
        static_assert(count > 99, SKEIN_FIT_IS
                      "held_out must have size() and batch(ids) as well; its size may be 0");
    else
        static_assert(
            count > 99, SKEIN_FIT_IS
            "behind held_out come more evaluation sets only: skein::evaluation(\"test\", data)");
}

#undef SKEIN_FIT_IS

} // namespace skein::train::detail
