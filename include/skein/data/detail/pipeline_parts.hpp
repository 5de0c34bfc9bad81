// SPDX-License-Identifier: Apache-2.0
#pragma once
// Machinery of <skein/data/pipeline.hpp>: chosen samples, tuples of operators, names.

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fields.hpp>
#include <skein/core/permutation.hpp>
#include <skein/core/type_name.hpp>
#include <skein/data/detail/row_place.hpp>
#include <skein/data/draws.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <fmt/format.h>

namespace skein::data {

namespace detail {

/// What a row is a function of, beside the operator.
struct row_key {
    std::uint64_t seed = 0, epoch = 0, sample = 0;
};

/// The last identifier of the function that a type names as its argument: the same under every
/// compiler.
[[nodiscard]] std::string function_name(const std::type_info& of);
/// The last identifier of a type's name.
[[nodiscard]] std::string short_name(const std::type_info& of);

/// A number as short as it can be read back.
[[nodiscard]] std::string number_text(float value);

/// A row function, called: with draws of its own if it takes some.
template <class F, class Row>
[[nodiscard]] auto call_of_row(const F& function, const row_key& key, std::uint64_t number,
                               const Row& row) {
    if constexpr (std::invocable<const F&, const Row&, draws&>) {
        draws random(key.seed, key.epoch, key.sample, number);
        return function(row, random);
    } else {
        static_assert(std::invocable<const F&, const Row&>,
                      "skein: a function of map or filter takes the row that stands left of it, "
                      "and data::draws& if it draws random numbers; one with fields is const");
        return function(row);
    }
}

/// What the values of a function's fields are, for describe().
template <class T>
void append_value(std::string& to, const T& value) {
    if constexpr (std::is_enum_v<T>) {
        append_value(to, static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_arithmetic_v<T>) {
        to += fmt::format("{}", value);
    } else if constexpr (std::convertible_to<const T&, std::string_view>) {
        to += fmt::format("\"{}\"", std::string_view(value));
    } else if constexpr (requires { std::begin(value); }) {
        to += '[';
        for (const auto& each : value) {
            if (to.back() != '[') to += ", ";
            append_value(to, each);
        }
        to += ']';
    } else {
        static_assert(plain_aggregate<T>,
                      "skein: a function of map or filter is a pointer, map<&f>(), or a struct "
                      "whose fields are numbers, enums, text, arrays and structs of them; or it "
                      "has describe(). Captures of a lambda cannot travel");
        to += '(';
        std::apply(
            [&](const auto&... each) {
                ((to += to.back() == '(' ? "" : ", ", append_value(to, each)), ...);
            },
            tie_fields(value));
        to += ')';
    }
}
/// Whether append_value() has a text for it.
template <class T>
constexpr bool has_text();
template <class Fields>
inline constexpr bool all_have_text = false;
template <class... T>
inline constexpr bool all_have_text<std::tuple<T...>> = (has_text<std::remove_cvref_t<T>>() && ...);
template <class T>
constexpr bool has_text() {
    if constexpr (std::is_enum_v<T> || std::is_arithmetic_v<T> ||
                  std::convertible_to<const T&, std::string_view>)
        return true;
    else if constexpr (requires(const T& v) { std::begin(v); })
        return has_text<std::remove_cvref_t<decltype(*std::begin(std::declval<const T&>()))>>();
    else if constexpr (plain_aggregate<T>)
        return all_have_text<decltype(tie_fields(std::declval<const T&>()))>;
    else
        return false;
}

/// A source by its describe(); else by its name, its fields if they have a text, and its size.
template <class Source>
[[nodiscard]] std::string describe_source(const Source& source) {
    if constexpr (requires {
                      { source.describe() } -> std::convertible_to<std::string>;
                  }) {
        return source.describe();
    } else {
        auto line = short_name(typeid(Source));
        if constexpr (has_text<Source>() && !std::is_empty_v<Source>)
            append_value(line, source);
        else
            line += "(" + std::to_string(source.size()) + ")";
        return line;
    }
}

/// "crop(64, 0.5)".
template <class F>
[[nodiscard]] std::string describe_function(const F& function) {
    if constexpr (requires {
                      { function.describe() } -> std::convertible_to<std::string>;
                  }) {
        return function.describe();
    } else if constexpr (std::is_empty_v<F>) {
        return short_name(typeid(F));
    } else {
        auto line = short_name(typeid(F));
        append_value(line, function);
        return line;
    }
}

/// Samples of a source that a pipeline visits: [begin, end) of its numbers, or of a fixed shuffle.
struct selection {
    std::uint64_t begin = 0, end = ~std::uint64_t{0};
    bool is_split = false;
    std::uint64_t key = 0;

    [[nodiscard]] std::uint64_t size(std::uint64_t of) const noexcept {
        const auto last = end < of ? end : of;
        return begin < last ? last - begin : 0;
    }
    [[nodiscard]] std::uint64_t sample(std::uint64_t place, std::uint64_t of) const {
        return is_split ? keyed_permutation(of, key)(begin + place) : begin + place;
    }
    /// Keeps [first, first + count) of what is kept.
    void keep(std::uint64_t first, std::uint64_t count) noexcept;
    /// Chooses from a shuffle; the samples of the first part.
    [[nodiscard]] std::uint64_t split(std::uint64_t of, double fraction, std::uint64_t seed);
    [[nodiscard]] std::string describe() const;
};

template <class Ops>
void describe_operators(const Ops& ops, std::string& line) {
    std::apply([&](const auto&... op) { ((line += " | " + op.describe()), ...); }, ops);
}

/// How many operators of the user one of a plan stands for: folded ones draw as themselves.
template <class Op>
constexpr std::size_t width_of() {
    if constexpr (requires { Op::width; })
        return Op::width;
    else
        return 1;
}
template <class Ops, std::size_t Count>
constexpr std::size_t width_before() {
    return []<std::size_t... I>(std::index_sequence<I...>) {
        return (std::size_t{0} + ... + width_of<std::tuple_element_t<I, Ops>>());
    }(std::make_index_sequence<Count>{});
}
template <class Ops>
inline constexpr std::size_t whole_width = width_before<Ops, std::tuple_size_v<Ops>>();

template <class Ops, std::size_t... I>
auto all_but_last(Ops&& ops, std::index_sequence<I...>) {
    return std::tuple(std::get<I>(std::move(ops))...);
}

/// Appends an operator, or folds it into the last one where an overload fuse(last, op) says how.
template <class... Ops, class Op>
auto add_operator(std::tuple<Ops...> ops, Op op) {
    constexpr std::size_t count = sizeof...(Ops);
    if constexpr (count > 0) {
        if constexpr (requires { fuse(std::get<count - 1>(ops), op); }) {
            auto folded = fuse(std::get<count - 1>(ops), op);
            auto before = all_but_last(std::move(ops), std::make_index_sequence<count - 1>{});
            return std::tuple_cat(std::move(before), std::tuple(std::move(folded)));
        } else {
            return std::tuple_cat(std::move(ops), std::tuple(std::move(op)));
        }
    } else {
        return std::tuple(std::move(op));
    }
}

template <class Op>
concept filtering = requires { requires Op::is_filter; };

/// What a row function has thrown. Memory that is out is exhausted, all else a fault of the row.
[[nodiscard]] error error_of_throw(std::exception_ptr thrown);
/// The exception that is being handled, as an error of this operator.
[[noreturn]] void rethrow_in_operator(const std::string& what);

/// What an operator gives; what it throws names it.
template <class Op, class Call>
[[nodiscard]] auto in_operator(const Op& op, Call call) {
    try {
        return call();
    } catch (...) {
        rethrow_in_operator(op.describe());
    }
}

/// Runs operators At.. on a row; nothing when a filter leaves it out.
///   first  number of the first operator of `ops` in its pipeline
template <std::size_t At, class Ops, class Row>
[[nodiscard]] auto run_operators(const Ops& ops, const row_key& key, std::size_t first,
                                 const Row& row) {
    if constexpr (At == std::tuple_size_v<Ops>) {
        return std::optional<Row>(row);
    } else {
        const auto& op = std::get<At>(ops);
        const auto number = first + width_before<Ops, At>();
        if (place_of_row != nullptr)
            place_of_row->step.store(static_cast<std::uint32_t>(number + 1),
                                     std::memory_order_relaxed);
        using op_type = std::tuple_element_t<At, Ops>;
        if constexpr (filtering<op_type>) {
            using result = decltype(run_operators<At + 1>(ops, key, first, row));
            if (!in_operator(op, [&] { return op.keeps(key, number, row); })) return result();
            return run_operators<At + 1>(ops, key, first, row);
        } else {
            const auto next = in_operator(op, [&] { return op.apply(key, number, row); });
            return run_operators<At + 1>(ops, key, first, next);
        }
    }
}
/// How operator `number` of a pipeline is called, if it is one of `ops`; else empty.
///   first  number of their first one
template <class Ops>
[[nodiscard]] std::string operator_name(const Ops& ops, std::size_t first, std::size_t number) {
    std::string found;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        ((first + width_before<Ops, I>() == number ? void(found = std::get<I>(ops).describe())
                                                   : void()),
         ...);
    }(std::make_index_sequence<std::tuple_size_v<Ops>>{});
    return found;
}
template <class Ops, class Row>
using row_after = typename decltype(run_operators<0>(std::declval<const Ops&>(), row_key{}, 0,
                                                     std::declval<const Row&>()))::value_type;

/// How a source is read: through its reader where it has one.
template <class Source>
[[nodiscard]] auto reader_of(const Source& source) {
    if constexpr (requires { source.locate(std::uint64_t{0}); })
        return source.reader();
    else
        return source;
}
template <class Source>
[[nodiscard]] auto place_of(const Source& source, std::uint64_t sample) {
    if constexpr (requires { source.locate(sample); })
        return source.locate(sample);
    else
        return sample;
}
template <class Source>
using reader_type = decltype(reader_of(std::declval<const Source&>()));
template <class Source>
using place_type = decltype(place_of(std::declval<const Source&>(), std::uint64_t{0}));
template <class Source>
using source_row = std::remove_cvref_t<decltype(std::declval<const reader_type<Source>&>().read(
    std::declval<const place_type<Source>&>()))>;

template <class P>
struct pipeline_rows {
    using source = decltype(P::source);
    using left = row_after<decltype(P::left), source_row<source>>;
    using type = row_after<decltype(P::right), left>;
};

} // namespace detail
} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/pipeline_parts.ipp>
#endif
