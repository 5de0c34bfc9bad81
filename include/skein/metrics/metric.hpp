// SPDX-License-Identifier: Apache-2.0
#pragma once
// A metric: a struct whose fields say what batches and ranks add up, with update() and compute().
//
//     struct mean_absolute_error {
//         static constexpr std::string_view name = "mae";
//         skein::metrics::summed distance, weight; // what batches and ranks add up
//
//         void update(const skein::metrics::samples& s) {
//             for (std::size_t i = 0; i < s.target.size(); ++i) {
//                 distance[0] += std::abs(s.preds[i] - s.target[i]);
//                 weight[0] += 1;
//             }
//         }
//         double compute() const { return distance[0] / weight[0]; }
//     };
//
// Fields of other types are options: those that are numbers, truths or texts are compared between
// the ranks and with a checkpoint. A metric that sizes its arrays by an option has a member
// void begin(), called once, before the first update(); it also refuses options that make no sense.

#include <skein/core/error.hpp>
#include <skein/core/fields.hpp>
#include <skein/core/option_count.hpp>
#include <skein/core/type_name.hpp>
#include <skein/metrics/accumulators.hpp>
#include <skein/metrics/samples.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::metrics {

/// What a metric comes to: one number, or numbers with a shape, e.g. one per class.
struct score {
    std::string name{};
    std::vector<std::size_t> shape{}; ///< empty: one number
    std::vector<double> values{};     ///< row-major

    score() = default;
    score(double one) : values{one} {}
    score(std::vector<double> each) : shape{each.size()}, values(std::move(each)) {}
    /// rows * columns values
    score(std::size_t rows, std::size_t columns, std::vector<double> each)
        : shape{rows, columns}, values(std::move(each)) {}

    [[nodiscard]] bool is_number() const noexcept { return shape.empty() && values.size() == 1; }
    friend bool operator==(const score&, const score&) = default;
};

/// A field that batches and ranks add up.
template <class F>
concept accumulates = requires(F& field) {
    { F::kind } -> std::convertible_to<merge_kind>;
    field.clear();
};

/// See above.
template <class M>
concept metric = plain_aggregate<M> && std::copy_constructible<M> &&
                 requires(M& m, const M& merged, const samples& shown) {
                     m.update(shown);
                     { merged.compute() } -> std::convertible_to<score>;
                 };

/// One array of a metric. Refers to it.
struct state_view {
    std::string_view name{};
    merge_kind kind = merge_kind::sum;
    std::span<double> values{}; ///< of sum, max and min
    gathered* rows = nullptr;   ///< of rows
};

/// Any metric, by value.
class any_metric {
public:
    /// Calls begin(). Throws errc::usage for options that make no sense.
    template <metric M>
    any_metric(std::string name, M made)
        : name_(std::move(name)), held_(std::make_unique<held_metric<M>>(std::move(made))) {
        held_->begin();
    }
    any_metric(const any_metric& other) : name_(other.name_), held_(other.held_->copy()) {}
    any_metric(any_metric&&) noexcept = default;
    any_metric& operator=(any_metric other) noexcept {
        name_ = std::move(other.name_);
        held_ = std::move(other.held_);
        return *this;
    }
    ~any_metric() = default;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    void update(const samples& shown) { held_->update(shown); }
    [[nodiscard]] score compute() const {
        auto made = held_->compute();
        made.name = name_;
        return made;
    }
    /// Its arrays in order. They refer to this object.
    [[nodiscard]] std::vector<state_view> states() { return held_->states(); }
    /// Type and options, e.g. "accuracy: classes 10, top_k 1".
    [[nodiscard]] std::string describe() const { return held_->describe(); }

private:
    struct held {
        virtual ~held() = default;
        virtual std::unique_ptr<held> copy() const = 0;
        virtual void begin() = 0;
        virtual void update(const samples& shown) = 0;
        virtual score compute() const = 0;
        virtual std::vector<state_view> states() = 0;
        virtual std::string describe() const = 0;
    };
    template <class M>
    struct held_metric final : held {
        explicit held_metric(M made) : value(std::move(made)) {}
        std::unique_ptr<held> copy() const override { return std::make_unique<held_metric>(value); }
        void begin() override {
            if constexpr (requires { value.begin(); }) value.begin();
        }
        void update(const samples& shown) override { value.update(shown); }
        score compute() const override { return value.compute(); }
        std::vector<state_view> states() override;
        std::string describe() const override;
        M value;
    };

    std::string name_;
    std::unique_ptr<held> held_;
};

/// The name that a metric has when it is given none: M::name, or that of its type.
template <metric M>
[[nodiscard]] std::string name_of() {
    if constexpr (requires { std::string_view(M::name); })
        return std::string(std::string_view(M::name));
    else {
        const auto whole = type_name(typeid(M));
        return whole.substr(whole.rfind(':') + 1);
    }
}

namespace detail {

/// An option as text; empty for a type that has none.
[[nodiscard]] std::string option_text(bool value);
[[nodiscard]] std::string option_text(std::int64_t value);
[[nodiscard]] std::string option_text(double value);
[[nodiscard]] std::string option_text(std::string_view value);

template <class F>
[[nodiscard]] std::string text_of_field(const F& field) {
    if constexpr (std::same_as<F, bool>)
        return option_text(field);
    else if constexpr (std::same_as<F, option_count>)
        return option_text(static_cast<std::int64_t>(field.value()));
    else if constexpr (std::integral<F>)
        return option_text(static_cast<std::int64_t>(field));
    else if constexpr (requires {
                           requires std::is_enum_v<F>;
                           std::string_view(to_string(field));
                       })
        return option_text(std::string_view(to_string(field)));
    else if constexpr (std::is_enum_v<F>)
        return option_text(static_cast<std::int64_t>(field));
    else if constexpr (std::floating_point<F>)
        return option_text(static_cast<double>(field));
    else if constexpr (std::convertible_to<const F&, std::string_view>)
        return option_text(std::string_view(field));
    else if constexpr (requires {
                           field.has_value();
                           *field;
                       })
        return field.has_value() ? text_of_field(*field) : std::string("none");
    else if constexpr (requires {
                           field.begin();
                           field.end();
                       }) {
        std::string all = "[";
        for (const auto& each : field) all += (all.size() > 1 ? " " : "") + text_of_field(each);
        return all + "]";
    } else
        return {};
}

/// Calls it with the name of each field and the field.
template <class M, class Call>
void each_field(M& of, Call call) {
    auto fields = tie_fields(of);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        (call(field_name<std::remove_const_t<M>, I>(), std::get<I>(fields)), ...);
    }(std::make_index_sequence<field_count<std::remove_const_t<M>>>{});
}

} // namespace detail

template <class M>
std::vector<state_view> any_metric::held_metric<M>::states() {
    std::vector<state_view> all;
    detail::each_field(value, [&]<class F>(std::string_view name, F& field) {
        if constexpr (std::same_as<F, gathered>)
            all.push_back({.name = name, .kind = merge_kind::rows, .rows = &field});
        else if constexpr (accumulates<F>)
            all.push_back({.name = name, .kind = F::kind, .values = field.values()});
    });
    return all;
}

template <class M>
std::string any_metric::held_metric<M>::describe() const {
    std::string all = name_of<M>();
    detail::each_field(value, [&]<class F>(std::string_view name, const F& field) {
        if constexpr (!accumulates<std::remove_const_t<F>>) {
            if (const auto text = detail::text_of_field(field); !text.empty())
                all += (all.find(':') == std::string::npos ? ": " : ", ") + std::string(name) +
                       " " + text;
        }
    });
    return all;
}

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/metric.ipp>
#endif
