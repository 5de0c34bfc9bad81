// SPDX-License-Identifier: Apache-2.0
#pragma once
// The connections that an HTTP server has, and who goes when there are too many.
//
// Some places are kept for keys that may change something. When there is none for a newcomer, one
// of those goes that lose least by it: a stream of events whose client does not read it, a
// connection between two requests, a stream of events of the key that has the most, an answer that
// its client does not take; of each kind the one that has been so for longest. A request that is
// being answered goes for nobody.

#include <skein/core/cancel.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/http_router.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace skein::net::detail {

class http_places;

/// What a connection does.
enum class http_doing : std::uint8_t { answering, resting, writing };

/// One connection's place; free again when this ends.
class http_place : public list_node<http_place> {
public:
    explicit http_place(http_places& of) noexcept : all_(of) {}
    http_place(const http_place&) = delete;
    http_place& operator=(const http_place&) = delete;
    ~http_place() { leave(); }

    [[nodiscard]] bool is_taken() const noexcept { return is_linked(); }
    /// It was needed for another one; what the connection waits for is cancelled.
    [[nodiscard]] bool has_gone() const noexcept { return has_gone_; }
    [[nodiscard]] cancel_token token() const noexcept { return stop_.token(); }
    /// What it does from now on; gives what it did before.
    inline http_doing does(http_doing what, time_point now) noexcept;

private:
    friend class http_places;
    inline void leave() noexcept;

    http_places& all_;
    cancel_source stop_;
    time_point since_{};
    http_right right_ = http_right::open;
    http_doing doing_ = http_doing::answering;
    bool is_stream_ = false, has_gone_ = false;
};

/// All of them.
class http_places {
public:
    /// kept      places that only http_right::change may have
    /// streams   of events, that one key may have
    http_places(std::size_t most, std::size_t kept, std::size_t streams) noexcept
        : most_(most), kept_(std::min(kept, most / 2)), streams_(streams) {}

    [[nodiscard]] std::size_t taken() const noexcept { return taken_; }
    /// Those for whom there was none wait here: somebody has gone since, or would now.
    wait_queue changed;
    std::size_t waiting = 0; ///< so many do

    /// Counted, whether there is a place or not: for those without a key, where no door bounds them.
    [[nodiscard]] bool count(http_place& one) noexcept {
        add(one, http_right::open);
        return taken_ <= most_;
    }
    /// Takes a place, that of another one if need be; false: there is none, and none can go.
    [[nodiscard]] bool take(http_place& one, http_right right) noexcept {
        if (one.is_linked()) {
            --of(one.right_);
            ++of(one.right_ = right);
            return true;
        }
        const bool changes = right == http_right::change;
        if (taken_ - of(http_right::change) >= most_ - kept_ && !changes &&
            !send_away(http_right::view))
            return false;
        if (taken_ >= most_ && !send_away(http_right::view) &&
            !(changes && send_away(http_right::change)))
            return false;
        add(one, right);
        return true;
    }
    /// It is a stream of events from now on; when its key has too many, one of them goes.
    void streams(http_place& one) noexcept {
        one.is_stream_ = true;
        changed.wake_one();
        std::size_t n = 0;
        list_.for_each([&](http_place& p) { n += p.is_stream_ && p.right_ == one.right_ ? 1 : 0; });
        if (n <= streams_) return;
        http_place* gone = nullptr;
        list_.for_each([&](http_place& p) {
            if (&p == &one || !p.is_stream_ || p.right_ != one.right_) return;
            if (gone == nullptr || loss(p) < loss(*gone)) gone = &p;
        });
        if (gone != nullptr) send_away(*gone);
    }

private:
    friend class http_place;
    void add(http_place& one, http_right right) noexcept {
        one.right_ = right;
        list_.push_back(one);
        ++taken_;
        ++of(right);
    }
    [[nodiscard]] std::size_t& of(http_right right) noexcept {
        return by_right_[static_cast<std::size_t>(right)];
    }
    /// What its client loses; the least goes first, and the oldest of those.
    [[nodiscard]] static std::pair<int, time_point> loss(const http_place& p) noexcept {
        const bool writes = p.doing_ == http_doing::writing;
        const int kind = p.is_stream_ ? (writes ? 0 : 2) : (writes ? 3 : 1);
        return {kind, p.since_};
    }
    [[nodiscard]] bool send_away(http_right right) noexcept {
        http_place* gone = nullptr;
        list_.for_each([&](http_place& p) {
            if ((p.right_ == http_right::change) != (right == http_right::change)) return;
            if (!p.is_stream_ && p.doing_ == http_doing::answering) return;
            if (gone == nullptr || loss(p) < loss(*gone)) gone = &p;
        });
        if (gone == nullptr) return false;
        send_away(*gone);
        return true;
    }
    static void send_away(http_place& p) noexcept {
        p.has_gone_ = true;
        p.leave();
        p.stop_.request();
    }

    std::size_t most_, kept_, streams_, taken_ = 0;
    std::array<std::size_t, 3> by_right_{};
    intrusive_list<http_place, http_place> list_; ///< in the order of coming
};

inline void http_place::leave() noexcept {
    if (!is_linked()) return;
    unlink();
    --all_.taken_;
    --all_.of(right_);
    all_.changed.wake_one();
}

inline http_doing http_place::does(http_doing what, time_point now) noexcept {
    if (what != doing_) since_ = now;
    if (what != http_doing::answering) all_.changed.wake_one();
    return std::exchange(doing_, what);
}

} // namespace skein::net::detail
