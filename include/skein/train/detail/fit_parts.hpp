// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user's types of one fit() behind detail/session.hpp's virtual calls. Included by train/trainer.hpp
// only, after its concepts.

namespace skein::train::detail {

/// "DDP" of a strategy that says so.
template <class Strategy>
[[nodiscard]] std::string strategy_name_of() {
    if constexpr (requires { std::string(Strategy::name); })
        return std::string(Strategy::name);
    else
        return {};
}

template <class Strategy, class Model, class Loss, class Data, class HeldOut, class Callbacks>
class parts_of final : public fit_parts {
    static_assert(
        loss_function<Loss, Model, batch_of<Data>>,
        "the loss must be callable as loss(model, batch) or loss(model, batch, metric_set&) "
        "and return a scalar tensor or a skein::weighted_loss");

public:
    parts_of(context& ctx, Model& model, Loss& loss, const Data& data, const HeldOut& held_out,
             Callbacks& callbacks)
        : model_(model), loss_(loss), data_(data), held_out_(held_out), callbacks_(callbacks),
          strategy_(ctx, *model) {}

    torch::nn::Module& module() override { return *model_; }
    weighted_loss loss(ids samples, report::metric_set& metrics) override {
        return call(data_.batch(samples), metrics);
    }
    weighted_loss held_out_loss(ids samples, report::metric_set& metrics) override {
        return call(held_out_.batch(samples), metrics);
    }

    bool loss_is_weighted() const override { return batch_is_weighted<batch_of<Data>>(); }
    std::string strategy_name() const override { return strategy_name_of<Strategy>(); }
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

    void tell(const start_info& event) override { tell_all(event); }
    void tell(const step_info& event) override { tell_all(event); }
    void tell(const eval_info& event) override { tell_all(event); }
    void tell(const checkpoint_info& event) override { tell_all(event); }
    void tell(const fit_result& event) override { tell_all(event); }

private:
    template <class Batch>
    static constexpr bool reports =
        std::invocable<Loss&, Model&, const Batch&, report::metric_set&>;

    template <class Batch>
    weighted_loss call(const Batch& batch, report::metric_set& metrics) {
        const auto value = [&] {
            if constexpr (reports<Batch>)
                return loss_(model_, batch, metrics);
            else
                return loss_(model_, batch);
        };
        if constexpr (is_weighted<decltype(value())>)
            return value();
        else
            return {value(), {}};
    }
    template <class R>
    static constexpr bool is_weighted = std::convertible_to<R, weighted_loss>;
    template <class Batch>
    static constexpr bool batch_is_weighted() {
        if constexpr (reports<Batch>)
            return is_weighted<
                std::invoke_result_t<Loss&, Model&, const Batch&, report::metric_set&>>;
        else
            return is_weighted<std::invoke_result_t<Loss&, Model&, const Batch&>>;
    }
    template <class Event>
    void tell_all(const Event& event) {
        std::apply([&](auto&... c) { (detail::tell(c, event), ...); }, callbacks_);
    }

    Model& model_;
    Loss& loss_;
    const Data& data_;
    const HeldOut& held_out_;
    Callbacks& callbacks_;
    Strategy strategy_;
};

} // namespace skein::train::detail
