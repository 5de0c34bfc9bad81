// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pipelines: a source and what is done to each of its rows, as a value whose type is the plan.
//
//     struct sample { data::image<float, 3> pixels; std::int64_t label = 0; };
//     sample draw(std::int64_t i, data::draws& random);
//     bool is_bright(const sample& s);
//
//     auto train = data::range(50'000) | data::map<&draw>() | data::filter<&is_bright>()
//                | data::shuffle();
//
// Nothing runs before a loader asks. A row is a pure function of (seed, epoch, sample, pipeline):
// `random` draws the same numbers for the same sample of the same epoch on every machine, so rows
// may be made by any thread or host, and again. Functions must keep to that: no state, no clock, no
// other randomness.
//
// Sources: range(n); any struct with size() and read(i), where i is a std::uint64_t; image_folder
// (data/folder.hpp). A source with locate(i) is asked on the rank where sample i is, and what it
// answers is read by reader().read(place), on any host: helpers then need no index.

#include <skein/data/detail/pipeline_parts.hpp>
#include <skein/data/draws.hpp>
#include <skein/data/helpers.hpp>
#include <skein/data/order.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein::data {

/// Samples by number, each read by itself. Laws: read(i) depends on i alone and may be called by
/// several threads at a time. size() counts once, when a loader is made: what is added later is seen
/// by the next loader.
template <class S>
concept row_source = requires(const S& source) {
    { source.size() } -> std::convertible_to<std::uint64_t>;
} && (requires(const S& source) { source.read(std::uint64_t{0}); } || requires(const S& source) {
    source.reader().read(source.locate(std::uint64_t{0}));
});

/// The numbers 0 to count - 1, as rows of std::int64_t.
struct range {
    std::uint64_t count = 0;

    [[nodiscard]] std::uint64_t size() const noexcept { return count; }
    [[nodiscard]] std::int64_t read(std::uint64_t i) const noexcept {
        return static_cast<std::int64_t>(i);
    }
};

/// F(row) or F(row, draws&): the next row.
template <auto F>
struct map_operator {
    template <class Row>
    [[nodiscard]] static auto apply(const detail::row_key& key, std::uint64_t number,
                                    const Row& row) {
        return detail::call_of_row(F, key, number, row);
    }
    [[nodiscard]] static std::string describe() {
        return "map(" + detail::function_name(typeid(map_operator)) + ")";
    }
};
/// Rows of another kind, or the same changed: F(row) or F(row, draws&).
template <auto F>
[[nodiscard]] constexpr map_operator<F> map() {
    return {};
}

/// A function with fields: they travel to helpers, and tell checkpoints apart.
template <class F>
struct map_with_operator {
    static constexpr bool is_stateless = std::is_empty_v<F>;
    F function;
    template <class Row>
    [[nodiscard]] auto apply(const detail::row_key& key, std::uint64_t number,
                             const Row& row) const {
        return detail::call_of_row(function, key, number, row);
    }
    [[nodiscard]] std::string describe() const {
        return "map(" + detail::describe_function(function) + ")";
    }
};
/// function(row) or function(row, draws&), by an object that is const: struct crop { int side; };
/// its fields are numbers, enums, text, std::array or std::vector of them, and structs of these;
/// or it has describe(). Called by several threads at a time.
template <class F>
    requires std::is_class_v<F>
[[nodiscard]] constexpr map_with_operator<F> map(F function) {
    return {std::move(function)};
}

/// Leaves out rows for which F(row) is false.
template <auto F>
struct filter_operator {
    static constexpr bool is_filter = true;
    template <class Row>
    [[nodiscard]] static bool keeps(const detail::row_key& key, std::uint64_t number,
                                    const Row& row) {
        return detail::call_of_row(F, key, number, row);
    }
    [[nodiscard]] static std::string describe() {
        return "filter(" + detail::function_name(typeid(filter_operator)) + ")";
    }
};
/// Leaves out rows for which F(row) or F(row, draws&) is false: batches get smaller, alike on every
/// number of ranks.
template <auto F>
[[nodiscard]] constexpr filter_operator<F> filter() {
    return {};
}

/// A filter with fields, as map_with_operator.
template <class F>
struct filter_with_operator {
    static constexpr bool is_filter = true, is_stateless = std::is_empty_v<F>;
    F function;
    template <class Row>
    [[nodiscard]] bool keeps(const detail::row_key& key, std::uint64_t number,
                             const Row& row) const {
        return detail::call_of_row(function, key, number, row);
    }
    [[nodiscard]] std::string describe() const {
        return "filter(" + detail::describe_function(function) + ")";
    }
};
/// Leaves out rows for which function(row) or function(row, draws&) is false.
template <class F>
    requires std::is_class_v<F>
[[nodiscard]] constexpr filter_with_operator<F> filter(F function) {
    return {std::move(function)};
}

/// An operator that is not folded with its neighbours.
template <class Op>
struct apart_operator {
    Op op;
    template <class Row>
    [[nodiscard]] auto apply(const detail::row_key& key, std::uint64_t number,
                             const Row& row) const {
        return op.apply(key, number, row);
    }
    [[nodiscard]] std::string describe() const { return op.describe(); }
};
/// Keeps an operator as it stands: to compare with what folding makes of it.
template <class Op>
[[nodiscard]] constexpr apart_operator<Op> apart(Op op) {
    return {std::move(op)};
}

/// The same operator, Count times in a row; each time it draws other numbers.
template <std::size_t Count, class Op>
struct repeated {
    Op op;
};
/// op | op | ... , Count times.
template <std::size_t Count, class Op>
[[nodiscard]] constexpr repeated<Count, Op> repeat(Op op) {
    return {std::move(op)};
}

/// What stands left of it may run on helpers.
struct on {
    helpers where;
    explicit on(helpers how) : where(std::move(how)) {}
};
/// Every epoch visits the samples in another order, a function of (seed, epoch).
struct shuffle {};
/// Samples of a global batch, over all ranks; for loaders. A Trainer's are in its run_config.
struct batch {
    std::uint64_t samples = 1;
    constexpr explicit batch(std::uint64_t count) : samples(count) {}
};
/// The first samples only.
struct take {
    std::uint64_t count = 0;
    constexpr explicit take(std::uint64_t samples) : count(samples) {}
};
/// All but the first samples.
struct skip {
    std::uint64_t count = 0;
    constexpr explicit skip(std::uint64_t samples) : count(samples) {}
};

/// A source, the operators left and right of on(), and how its samples are visited.
template <row_source Source, class Left = std::tuple<>, class Right = std::tuple<>,
          bool Shipped = false>
struct pipeline {
    Source source;
    Left left{};
    Right right{};
    helpers where{};
    detail::selection chosen{};
    bool is_shuffled = false;
    std::uint64_t global_batch = 0; ///< of batch(); 0: nobody said

    /// Samples of an epoch, before filters.
    [[nodiscard]] std::uint64_t size() const {
        return chosen.size(static_cast<std::uint64_t>(source.size()));
    }
    /// The pipeline in one line.
    [[nodiscard]] std::string describe() const {
        auto line = detail::describe_source(source);
        line += chosen.describe();
        detail::describe_operators(left, line);
        detail::describe_operators(right, line);
        if (is_shuffled) line += " | shuffle";
        return line;
    }
};

namespace detail {
template <class T>
inline constexpr bool is_pipeline = false;
template <class S, class L, class R, bool O>
inline constexpr bool is_pipeline<pipeline<S, L, R, O>> = true;
template <class... Ops>
constexpr bool any_filter(const std::tuple<Ops...>*) {
    return (filtering<Ops> || ...);
}
template <class Pipeline>
inline constexpr bool has_filter =
    any_filter(static_cast<const decltype(Pipeline::left)*>(nullptr)) ||
    any_filter(static_cast<const decltype(Pipeline::right)*>(nullptr));
template <class T>
concept row_operator = requires { requires T::is_filter; } || requires {
    { T::describe() } -> std::convertible_to<std::string>;
} || requires(const T& op) {
    { op.describe() } -> std::convertible_to<std::string>;
};
} // namespace detail

/// Adds an operator on rows.
template <class S, class L, class R, bool Shipped, detail::row_operator Op>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, Op op) {
    if constexpr (Shipped) {
        auto more = detail::add_operator(std::move(p.right), std::move(op));
        return pipeline<S, L, decltype(more), true>{
            std::move(p.source), std::move(p.left), std::move(more), std::move(p.where), p.chosen,
            p.is_shuffled,       p.global_batch};
    } else {
        auto more = detail::add_operator(std::move(p.left), std::move(op));
        return pipeline<S, decltype(more), R, false>{
            std::move(p.source), std::move(more), std::move(p.right), std::move(p.where), p.chosen,
            p.is_shuffled,       p.global_batch};
    }
}
template <class S, class L, class R, bool Shipped, std::size_t Count, class Op>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, repeated<Count, Op> more) {
    if constexpr (Count == 0)
        return p;
    else
        return (std::move(p) | more.op) | repeated<Count - 1, Op>{more.op};
}
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, on where) {
    static_assert(!Shipped,
                  "skein: a pipeline has one on(): what stands left of it runs on helpers");
    return pipeline<S, L, R, true>{std::move(p.source),    std::move(p.left), std::move(p.right),
                                   std::move(where.where), p.chosen,          p.is_shuffled,
                                   p.global_batch};
}
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, shuffle) {
    p.is_shuffled = true;
    return p;
}
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, batch size) {
    p.global_batch = size.samples;
    return p;
}
/// take and skip choose from the samples as the source numbers them, whether or not the pipeline
/// shuffles: the same ones in every epoch.
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, take how) {
    static_assert(!detail::has_filter<pipeline<S, L, R, Shipped>>,
                  "skein: take(n) counts samples of the source, not rows that a filter keeps: it "
                  "stands left of filter()");
    p.chosen.keep(0, how.count);
    return p;
}
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto operator|(pipeline<S, L, R, Shipped> p, skip how) {
    static_assert(!detail::has_filter<pipeline<S, L, R, Shipped>>,
                  "skein: skip(n) counts samples of the source, not rows that a filter keeps: it "
                  "stands left of filter()");
    p.chosen.keep(how.count, ~std::uint64_t{0});
    return p;
}
/// Starts a pipeline.
template <row_source Source, class Op>
    requires(!detail::is_pipeline<Source>)
[[nodiscard]] auto operator|(Source source, Op op) {
    return pipeline<Source>{.source = std::move(source)} | std::move(op);
}

/// Two parts of one pipeline that share no sample: `fraction` of its samples in the first, the rest
/// in the second. Which ones is drawn once by `seed`, and is the same in every epoch.
///   errors  invalid_argument: a fraction outside [0, 1]; not_supported: one that is split or cut
///           already
template <class S, class L, class R, bool Shipped>
[[nodiscard]] auto split(pipeline<S, L, R, Shipped> whole, double fraction,
                         std::uint64_t seed = 0) {
    auto rest = whole;
    const auto first =
        whole.chosen.split(static_cast<std::uint64_t>(whole.source.size()), fraction, seed);
    rest.chosen = whole.chosen;
    whole.chosen.keep(0, first);
    rest.chosen.keep(first, ~std::uint64_t{0});
    return std::pair(std::move(whole), std::move(rest));
}

/// The rows that a pipeline gives.
template <class Pipeline>
using row_of = typename detail::pipeline_rows<Pipeline>::type;

} // namespace skein::data
