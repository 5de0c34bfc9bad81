// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of proc/output.hpp: from bytes to lines, and how these look.

#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/with_commas.hpp>
#include <skein/proc/children.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::proc {

SKEIN_INLINE void line_queue::add(bool is_error, std::string_view bytes) {
    auto& unended = unended_[is_error ? 1 : 0];
    while (!bytes.empty()) {
        const auto end = bytes.find('\n');
        const auto left = most_line - unended.size();
        if (left == 0 && end != 0) push(is_error, std::exchange(unended, {}));
        const auto n = std::min({end, bytes.size(), most_line - unended.size()});
        unended.append(bytes.substr(0, n));
        bytes.remove_prefix(n);
        if (n != end) continue;
        bytes.remove_prefix(1);
        push(is_error, std::exchange(unended, {}));
    }
}

SKEIN_INLINE void line_queue::end() {
    for (const bool is_error : {false, true})
        if (auto& unended = unended_[is_error ? 1 : 0]; !unended.empty())
            push(is_error, std::exchange(unended, {}));
}

SKEIN_INLINE void line_queue::push(bool is_error, std::string text) {
    constexpr std::size_t most_errors = 3, most_error = 300;
    if (is_error && !text.empty()) {
        errors_.push_back(text.substr(0, most_error));
        if (errors_.size() > most_errors) errors_.pop_front();
    }
    ++total_;
    bytes_ += text.size() + line_cost;
    lines_.push_back({is_error, std::move(text)});
    if (does_) does_(total_, lines_.back());
    while (bytes_ > most_) {
        bytes_ -= lines_.front().text.size() + line_cost;
        lines_.pop_front();
    }
}

SKEIN_INLINE std::vector<output_line> line_queue::take(std::size_t most_bytes) {
    std::vector<output_line> out;
    std::size_t taken = 0;
    while (!lines_.empty()) {
        const auto cost = lines_.front().text.size() + line_cost;
        if (!out.empty() && taken + cost > most_bytes) break;
        taken += cost;
        bytes_ -= cost;
        out.push_back(std::move(lines_.front()));
        lines_.pop_front();
    }
    return out;
}

SKEIN_INLINE void line_queue::put_back(std::uint64_t first, std::vector<output_line> lines) {
    if (first + lines.size() != next()) return;
    for (auto at = lines.rbegin(); at != lines.rend(); ++at) {
        const auto cost = at->text.size() + line_cost;
        if (bytes_ + cost > most_) return;
        bytes_ += cost;
        lines_.push_front(std::move(*at));
    }
}

SKEIN_INLINE std::string line_queue::last_errors() const {
    std::string out;
    for (const auto& line : errors_) {
        if (!out.empty()) out += " | ";
        out += line;
    }
    return out;
}

namespace detail {

SKEIN_INLINE task<void> read_one_output(child* from, bool is_error, line_queue* into,
                                        const std::function<void()>* on_more) {
    std::vector<std::byte> piece(std::size_t{64} << 10);
    for (;;) {
        auto reading = from->read_output(is_error, piece);
        const auto n = co_await reading;
        if (n == 0) co_return;
        into->add(is_error, as_text(byte_span(piece).first(n)));
        (*on_more)();
    }
}

} // namespace detail

SKEIN_INLINE task<void> read_lines(child* from, line_queue* into, std::function<void()> on_more) {
    scope both;
    both.spawn(detail::read_one_output(from, false, into, &on_more));
    both.spawn(detail::read_one_output(from, true, into, &on_more));
    auto read = both.join();
    co_await read;
    into->end();
    on_more();
}

namespace detail {

struct passed_lines {
    line_queue queue;
    event more;
    bool over = false;
};

SKEIN_INLINE task<void> read_all(child* from, passed_lines* to) {
    auto reading = read_lines(from, &to->queue, [to] { to->more.set(); });
    co_await reading;
    to->over = true;
    to->more.set();
}

SKEIN_INLINE task<void> print_all(passed_lines* from, std::string worker,
                                  const print_lines* print) {
    std::uint64_t next = 1;
    constexpr std::size_t at_a_time = 60'000;
    while (!from->over || !from->queue.empty()) {
        if (from->queue.empty()) {
            from->more.reset();
            auto more = from->more.wait();
            co_await more;
            continue;
        }
        std::vector<worker_lines> some(1);
        some[0].worker = worker;
        some[0].left_out = from->queue.next() - next;
        some[0].lines = from->queue.take(at_a_time);
        next = from->queue.next();
        auto printing = (*print)(std::move(some));
        co_await printing;
    }
}

} // namespace detail

SKEIN_INLINE task<void> pass_lines_on(child* from, std::string worker, const print_lines* print) {
    detail::passed_lines said;
    scope both;
    both.spawn(detail::read_all(from, &said));
    both.spawn(detail::print_all(&said, std::move(worker), print));
    auto ended = both.join();
    co_await ended;
}

// ---- how they look ------------------------------------------------------------------------------

SKEIN_INLINE std::vector<output_text> format_lines(const std::vector<worker_lines>& all,
                                                   const output_style& how) {
    std::vector<output_text> out;
    const auto append = [&](bool is_error, std::string_view prefix, std::string_view text) {
        if (out.empty() || out.back().is_error != is_error) out.push_back({is_error, {}});
        auto& to = out.back().text;
        const bool colour = is_error ? how.colour_on_error : how.colour_on_output;
        if (!prefix.empty()) to += colour ? fmt::format("\033[36m{}\033[0m", prefix) : prefix;
        to += text;
        to += '\n';
    };
    for (const auto& some : all) {
        const auto name = some.node.empty() ? fmt::format("({}) ", some.worker)
                                            : fmt::format("({}, {}) ", printable(some.worker),
                                                          printable(some.node));
        const std::string_view prefix = how.prefix ? std::string_view(name) : std::string_view();
        if (some.left_out == 1)
            append(true, {}, fmt::format("... 1 line of {} was left out", some.worker));
        if (some.left_out > 1)
            append(true, {},
                   fmt::format("... {} lines of {} were left out", with_commas(some.left_out),
                               some.worker));
        for (const auto& line : some.lines) append(line.is_error, prefix, line.text);
    }
    return out;
}

} // namespace skein::proc
