// SPDX-License-Identifier: Apache-2.0
#pragma once
// explain: what a pipeline does to its rows, stage by stage, and what that costs here.
//
//     fmt::print("{}", data::explain(plan).text());
//
//     200000 samples, shuffled, in batches of 64
//       image_folder(200000 files of 1000 classes, f...   41.20 us     98.2 kB
//       map(augment(224))                                  1.31 ms    602.1 kB
//       on(2 helpers): a row of 602.1 kB travels
//       a row, on one core                                 1.35 ms    602.1 kB
//
// Rows are made for it: those of the first samples of an epoch, by this thread.

#include <skein/core/clock.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/rows.hpp>
#include <skein/data/pipeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace skein::data {

/// A source or an operator, and what it cost.
struct explained_stage {
    std::string name;
    bool is_shipped = false;    ///< it stands left of on()
    std::size_t stands_for = 1; ///< operators that were folded into it
    bool is_filter = false;
    std::uint64_t rows_in = 0, rows_out = 0;
    double seconds = 0; ///< for all rows that came in
    double bytes = 0;   ///< of all rows that went out
};

struct explanation {
    std::vector<explained_stage> stages;
    std::uint64_t samples = 0, global_batch = 0;
    bool is_shuffled = false;
    helpers where{};

    /// A table for people.
    [[nodiscard]] std::string text() const;
};

namespace detail {

/// Bytes that a row holds: its numbers, and what its handles refer to.
template <class Row>
[[nodiscard]] std::size_t bytes_of_row(const Row& row) {
    const auto of = []<class T>(const T& field) -> std::size_t {
        if constexpr (is_image<T>)
            return field.size() * sizeof(typename T::value_type);
        else if constexpr (is_span<T>)
            return field.size_bytes();
        else if constexpr (std::is_same_v<T, text>)
            return field.size();
        else
            return sizeof(T);
    };
    if constexpr (!is_struct<Row>)
        return of(row);
    else
        return std::apply([&](const auto&... field) { return (std::size_t{0} + ... + of(field)); },
                          tie_fields(row));
}

template <class Ops>
void list_stages(const Ops& ops, bool is_shipped, std::vector<explained_stage>& into) {
    std::apply(
        [&](const auto&... op) {
            (into.push_back({.name = op.describe(),
                             .is_shipped = is_shipped,
                             .stands_for = width_of<std::remove_cvref_t<decltype(op)>>(),
                             .is_filter = filtering<std::remove_cvref_t<decltype(op)>>}),
             ...);
        },
        ops);
}

/// Runs operators At.. and then the rest, each with its time.
template <std::size_t At, class Ops, class Row, class Rest>
void run_timed(const Ops& ops, const row_key& key, std::size_t first, const Row& row,
               explained_stage* stage, const Rest& rest) {
    if constexpr (At == std::tuple_size_v<Ops>) {
        rest(row);
    } else {
        const auto& op = std::get<At>(ops);
        const auto number = first + width_before<Ops, At>();
        const auto begin = system_clock().now();
        stage->rows_in += 1;
        const auto passed = [&](const auto& next) {
            stage->rows_out += 1;
            stage->bytes += static_cast<double>(bytes_of_row(next));
            run_timed<At + 1>(ops, key, first, next, stage + 1, rest);
        };
        const auto spent = [&] {
            stage->seconds += to_seconds(between(begin, system_clock().now()));
        };
        if constexpr (filtering<std::tuple_element_t<At, Ops>>) {
            const bool keeps = in_operator(op, [&] { return op.keeps(key, number, row); });
            spent();
            if (keeps) passed(row);
        } else {
            const auto next = in_operator(op, [&] { return op.apply(key, number, row); });
            spent();
            passed(next);
        }
    }
}
} // namespace detail

/// Makes so many rows of a pipeline, and says what each stage of them cost.
///   rows    the first samples of the source; each is made twice, the second time counts
///   errors  of rows that cannot be made
template <class S, class L, class R, bool Shipped>
[[nodiscard]] explanation explain(const pipeline<S, L, R, Shipped>& plan, std::uint64_t rows = 8) {
    explanation made{.stages = {},
                     .samples = plan.size(),
                     .global_batch = plan.global_batch,
                     .is_shuffled = plan.is_shuffled,
                     .where = Shipped ? plan.where : helpers{}};
    made.stages.push_back({.name = detail::describe_source(plan.source), .is_shipped = Shipped});
    detail::list_stages(plan.left, Shipped, made.stages);
    detail::list_stages(plan.right, false, made.stages);
    const auto reader = detail::reader_of(plan.source);
    arena memory;
    const arena_scope scope(memory);
    const auto empty = made.stages;
    for (std::uint64_t i = 0; i < std::min(rows, plan.size()); ++i)
        for (const bool counts : {false, true}) {
            auto unused = empty;
            auto* stage = (counts ? made.stages : unused).data();
            memory.reset();
            const detail::row_key key{
                0, 0, plan.chosen.sample(i, static_cast<std::uint64_t>(plan.source.size()))};
            const auto begin = system_clock().now();
            const auto row = reader.read(detail::place_of(plan.source, key.sample));
            stage->seconds += to_seconds(between(begin, system_clock().now()));
            stage->rows_in += 1;
            stage->rows_out += 1;
            stage->bytes += static_cast<double>(detail::bytes_of_row(row));
            stage += 1;
            const auto right = [&](const auto& left) {
                detail::run_timed<0>(plan.right, key, detail::whole_width<L>, left,
                                     stage + std::tuple_size_v<L>, [](const auto&) {});
            };
            detail::run_timed<0>(plan.left, key, 0, row, stage, right);
        }
    return made;
}

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/explain.ipp>
#endif
