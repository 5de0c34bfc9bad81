// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far a stream's producer may be ahead of who takes its items, and what is said of it.
//
//     stream_window   travels in front of the arguments: the bound
//     items_taken     from who takes to who gives: so much of it is free again
//     item_credit     where the items are made: what is under way, and who waits until it is less
//     item_debt       where they are taken: what came and was not yet given back
//
// An item leaves while fewer than window.items are under way, of fewer than window.bytes: so one
// item more than window.bytes is under way at most, and the largest one gets through. Who takes
// gives back in pieces of half of the items or a quarter of the bytes: what is kept back never
// holds up the producer.

#include <skein/core/constants.hpp>
#include <skein/core/wait.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace skein {

/// How many items of a stream may be on the way, or wait to be taken, and how many bytes: neither
/// zero.
struct stream_window {
    std::uint32_t items = 64;
    std::uint64_t bytes = std::uint64_t{4} << 20;

    [[nodiscard]] constexpr bool is_open() const noexcept { return items != 0 && bytes != 0; }
};

namespace rt::detail {

/// The body of message_taken.
struct items_taken {
    std::uint32_t items = 0;
    std::uint64_t bytes = 0;

    static constexpr std::size_t size = 12;
    void encode(wire::writer& to) const {
        to.fixed(items);
        to.fixed(bytes);
    }
    /// False: too short, too long, or of no item.
    [[nodiscard]] bool decode(byte_span body) {
        wire::reader in(body);
        return in.fixed(items) && in.fixed(bytes) && in.finish() && items != 0;
    }
};

/// Of the process where a stream's items are made.
class item_credit {
public:
    explicit item_credit(stream_window most) noexcept : most_(most) {}
    item_credit(const item_credit&) = delete;
    item_credit& operator=(const item_credit&) = delete;

    [[nodiscard]] bool has_room() const noexcept {
        return under_way_.items < most_.items && under_way_.bytes < most_.bytes;
    }
    void sent(std::size_t bytes) noexcept {
        ++under_way_.items;
        under_way_.bytes += bytes;
        ++count_;
    }
    /// False: more than is under way, which nobody can have taken.
    [[nodiscard]] bool give(const items_taken& back) noexcept {
        if (back.items > under_way_.items || back.bytes > under_way_.bytes) return false;
        under_way_.items -= back.items;
        under_way_.bytes -= back.bytes;
        if (has_room()) waiting_.wake_all();
        return true;
    }
    /// Suspends until something was given back; throws cancelled. Look again then.
    [[nodiscard]] wait_queue::awaiter given() noexcept { return waiting_.wait(); }
    /// Items that were sent.
    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

private:
    stream_window most_, under_way_{0, 0};
    std::uint64_t count_ = 0;
    wait_queue waiting_;
};

/// Of the process where they are taken.
class item_debt {
public:
    explicit item_debt(stream_window most) noexcept : most_(most) {}

    [[nodiscard]] const stream_window& most() const noexcept { return most_; }
    /// False: it was not allowed to come.
    [[nodiscard]] bool came(std::size_t bytes) noexcept {
        if (under_way_.items >= most_.items || under_way_.bytes >= most_.bytes) return false;
        ++under_way_.items;
        under_way_.bytes += bytes;
        return true;
    }
    /// An item was taken. True: `due` is to be given back now.
    [[nodiscard]] bool taken(std::size_t bytes, items_taken& due) noexcept {
        ++kept_.items;
        kept_.bytes += bytes;
        if (kept_.items < std::max(most_.items / 2, std::uint32_t{1}) &&
            kept_.bytes < std::max(most_.bytes / 4, std::uint64_t{1}))
            return false;
        due = kept_;
        under_way_.items -= kept_.items;
        under_way_.bytes -= kept_.bytes;
        kept_ = {};
        return true;
    }
    /// Another attempt begins: nothing of it has come.
    void begin_again() noexcept {
        under_way_ = {0, 0};
        kept_ = {};
    }

private:
    stream_window most_, under_way_{0, 0};
    items_taken kept_;
};

} // namespace rt::detail
} // namespace skein
