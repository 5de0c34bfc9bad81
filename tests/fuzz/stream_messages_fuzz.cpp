// SPDX-License-Identifier: Apache-2.0
// What travels of streams, from any bytes: what can be read is written back as it was; a producer and
// a reader that keep to the window never disagree, and never wait for each other; one that does not
// is found out before anything is kept of it.
#include <skein/net/frame.hpp>
#include <skein/rt/detail/stream_call.hpp>
#include <skein/rt/detail/stream_window.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "require.hpp"

namespace {

using namespace skein;
using fuzz::require;
using rt::detail::item_credit;
using rt::detail::item_debt;
using rt::detail::items_taken;
using rt::detail::stream_call;

/// Numbers out of the input, 0 behind its end.
class numbers {
public:
    explicit numbers(byte_span from) noexcept : from_(from) {}
    [[nodiscard]] bool empty() const noexcept { return at_ >= from_.size(); }
    std::uint8_t next() noexcept {
        return empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(from_[at_++]);
    }

private:
    byte_span from_;
    std::size_t at_ = 0;
};

void read_messages(byte_span all) {
    items_taken taken;
    if (taken.decode(all)) {
        wire::writer out;
        taken.encode(out);
        const auto written = out.bytes();
        require(std::equal(written.begin(), written.end(), all.begin(), all.end()),
                "items_taken changed on its way");
    }
    if (const auto window = wire::decode<stream_window>(all)) {
        const auto written = wire::encode(*window);
        require(std::equal(written.begin(), written.end(), all.begin(), all.end()),
                "a window changed on its way");
    }
}

/// Both sides as they are made, with messages on the way in between.
void keep_to_the_window(byte_span all) {
    numbers in(all);
    const stream_window window{std::uint32_t{1} + in.next() % 9, std::uint64_t{1} + in.next() * 3U};
    item_credit credit(window);
    item_debt debt(window);
    std::deque<std::size_t> sent, came;
    std::deque<items_taken> back;
    while (!in.empty()) {
        const auto what = in.next();
        if (what % 4 == 0 && credit.has_room()) {
            const std::size_t size = in.next() * 2U;
            credit.sent(size);
            sent.push_back(size);
        } else if (what % 4 == 1 && !sent.empty()) {
            require(debt.came(sent.front()), "an item within the window was refused");
            came.push_back(sent.front());
            sent.pop_front();
        } else if (what % 4 == 2 && !came.empty()) {
            items_taken due;
            if (debt.taken(came.front(), due)) back.push_back(due);
            came.pop_front();
        } else if (what % 4 == 3 && !back.empty()) {
            require(credit.give(back.front()), "what was taken was refused");
            back.pop_front();
        }
        require(sent.size() + came.size() <= window.items, "more than the window is under way");
        if (sent.empty() && came.empty() && back.empty())
            require(credit.has_room(), "both sides wait for each other");
    }
}

/// A peer that says anything.
void say_anything(byte_span all) {
    numbers in(all);
    const stream_window window{std::uint32_t{1} + in.next() % 9, std::uint64_t{1} + in.next() * 3U};
    item_credit credit(window);
    counted_ptr<stream_call> call(new stream_call(window));
    std::uint64_t items = 0, bytes = 0;
    const std::vector<std::byte> body(512);
    try {
        while (!in.empty()) {
            const auto what = in.next();
            if (what % 3 == 0) {
                const items_taken back{in.next(), in.next()};
                require(!credit.give(back) || (back.items == 0 && back.bytes == 0),
                        "room for what was never sent");
            } else if (what % 3 == 1) {
                net::frame_view f;
                f.body = byte_span(body).first(in.next());
                call->take_item(f);
                ++items;
                bytes += f.body.size();
                require(items <= window.items && bytes < window.bytes + body.size(),
                        "more was kept than the window has");
            } else {
                const std::uint64_t count = in.next();
                const bool is_over = call->ends_behind(count, 0, byte_span(body).first(8));
                require(is_over == (count == items), "an end behind other items");
                require(call->came() == items, "items are counted wrong");
            }
            if (const auto due = call->end_that_is_due())
                require(due->count == items, "an end that is not due");
        }
    } catch (const error& e) {
        require(e.code() == errc::malformed, "refused for another reason");
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const byte_span all(reinterpret_cast<const std::byte*>(data), size);
    read_messages(all);
    keep_to_the_window(all);
    say_anything(all);
    return 0;
}
