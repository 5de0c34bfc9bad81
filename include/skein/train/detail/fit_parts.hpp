// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strategy, module and callbacks of one session behind detail/session_seam.hpp's virtual calls. Included by
// train/trainer.hpp only.

namespace skein::train::detail {

/// "DDP" of a strategy that says so.
template <class Strategy>
[[nodiscard]] std::string strategy_name_of() {
    if constexpr (requires { std::string(Strategy::name); })
        return std::string(Strategy::name);
    else
        return {};
}

/// What the strategy computes in; float32 for one that does not say.
template <class Strategy>
[[nodiscard]] precision_policy precision_used_by() {
    if constexpr (requires { Strategy::used_precision(); })
        return Strategy::used_precision();
    else
        return {};
}

template <class Strategy, class Callbacks>
class parts_of final : public session_parts {
public:
    parts_of(context& ctx, torch::nn::Module& module, Callbacks& callbacks)
        : module_(module), callbacks_(callbacks), strategy_(ctx, module) {}

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

    void tell(const start_info& event) override { tell_all(event); }
    action tell(const step_info& event) override { return ask_all(event); }
    action tell(const eval_info& event) override { return ask_all(event); }
    void tell(const checkpoint_info& event) override { tell_all(event); }
    void tell(const fit_result& event) override { tell_all(event); }

    std::vector<callback_state> states() const override {
        std::vector<callback_state> all;
        each([&](const auto& c) {
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (keeps_state<type>) all.push_back({type_name(typeid(type)), c.state()});
        });
        return all;
    }
    void restore(const callback_state& saved) override {
        each([&](auto& c) {
            using type = std::remove_cvref_t<decltype(c)>;
            if constexpr (keeps_state<type>)
                if (type_name(typeid(type)) == saved.name) c.restore(saved.state);
        });
    }

private:
    template <class Call>
    void each(Call call) const {
        std::apply([&](auto&... c) { (call(c), ...); }, callbacks_);
    }
    template <class Event>
    void tell_all(const Event& event) {
        each([&](auto& c) { detail::tell(c, event); });
    }
    template <class Event>
    action ask_all(const Event& event) {
        auto wanted = action::go_on;
        each([&](auto& c) {
            if (detail::tell(c, event) == action::stop) wanted = action::stop;
        });
        return wanted;
    }

    torch::nn::Module& module_;
    Callbacks& callbacks_;
    Strategy strategy_;
};

} // namespace skein::train::detail
