// SPDX-License-Identifier: Apache-2.0
#pragma once
// Evaluation sets: data that a run is measured on, each by its name and in its own rhythm.
//
//     trainer.fit(model, options, schedule, loss, data,
//                 skein::evaluation("val", held_out),                  // as run_config says
//                 skein::evaluation("test", tests, {.every = 0}));     // only at the end
//
// Their numbers are "val_loss", "test_loss", "test_<metric>". Data given without a name is "val".

#include <skein/core/config.hpp>
#include <skein/train/input.hpp>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace skein::train {

/// When a set is evaluated, and on how much of it. -1: as run_config::eval_... says.
struct evaluation_options {
    std::int64_t every = -1;   ///< steps, and at the end; 0: only at the end
    std::int64_t samples = -1; ///< at most so many, from the first one on; 0: all
    std::int64_t batch = -1;   ///< samples per rank and forward pass; 0: as in training
};

} // namespace skein::train

namespace skein {

/// A named evaluation set; refers to the data, which must outlive the session.
template <train::data_source D>
class evaluation {
public:
    evaluation(std::string name, const D& data, train::evaluation_options how = {})
        : name_(std::move(name)), data_(&data), how_(how) {}

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] const D& data() const noexcept { return *data_; }
    [[nodiscard]] const train::evaluation_options& options() const noexcept { return how_; }

private:
    std::string name_;
    const D* data_;
    train::evaluation_options how_;
};

} // namespace skein

namespace skein::train {

namespace detail {
template <class T>
inline constexpr bool is_evaluation = false;
template <class D>
inline constexpr bool is_evaluation<evaluation<D>> = true;

/// What fit() was given, as a named set.
template <class T>
[[nodiscard]] auto named_evaluation(const T& given) {
    if constexpr (is_evaluation<T>)
        return given;
    else
        return evaluation<T>("val", given);
}
} // namespace detail

/// What fit() evaluates on: a data source, or a named one.
template <class T>
concept evaluation_input =
    data_source<std::remove_cvref_t<T>> || detail::is_evaluation<std::remove_cvref_t<T>>;

} // namespace skein::train
