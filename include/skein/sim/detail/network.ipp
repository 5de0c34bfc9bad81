// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams, listeners and hosts of the simulated network.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <span>
#include <vector>

#include <fmt/core.h>

namespace skein::sim {
namespace detail {

class stream final : public net::stream {
public:
    stream(network& on, std::shared_ptr<link> link, bool connecting)
        : net_(on), link_(std::move(link)), in_(connecting ? link_->back : link_->forward),
          out_(connecting ? link_->forward : link_->back), number_(++on.next_stream_) {
        net_.streams_.emplace(number_, this);
    }
    ~stream() override {
        SKEIN_CHECK(!reading_ && !writing_,
                    "a simulated stream is destroyed while it is read or written");
        close();
        net_.streams_.erase(number_);
    }

    task<std::size_t> read_some(mut_byte_span into) override {
        SKEIN_CHECK(!reading_, "two reads of one stream at a time");
        if (into.empty()) co_return 0;
        if (net_.loop_.draw(0.1)) { // sometimes an inline completion is none
            auto others = yield();
            co_await others;
        }
        while (true) {
            if (const auto got = take(into)) co_return *got;
            reading_ = true;
            const flag_guard guard(reading_);
            auto more = in_.readable.wait();
            co_await more;
        }
    }

    task<void> write_all(std::span<const byte_span> batch) override {
        SKEIN_CHECK(!writing_, "two writes of one stream at a time");
        std::size_t skip = 0;
        for (;;) {
            while (!batch.empty() && skip >= batch.front().size()) {
                skip -= batch.front().size();
                batch = batch.subspan(1);
            }
            if (batch.empty()) co_return;
            const std::size_t put = put_some(batch, skip);
            skip += put;
            if (put == 0) {
                writing_ = true;
                const flag_guard guard(writing_);
                auto writable = out_.writable.wait();
                co_await writable;
            }
        }
    }

    std::optional<std::size_t> try_read(mut_byte_span into) override {
        if (into.empty()) return 0;
        return take(into);
    }
    std::size_t try_write(std::span<const byte_span> batch) override { return put_some(batch, 0); }

    void close_send() noexcept override {
        if (closed_ || out_.end_sent) return;
        out_.end_sent = true;
        if (is_broken()) return; // a broken stream has nothing more to say
        pipe::item end;
        end.end = true;
        net_.send(link_, out_, std::move(end));
    }
    void close() noexcept override {
        if (closed_) return;
        if (in_.unread() > 0 && !is_broken())
            break_both(); // like a kernel: unread bytes make it a reset
        close_send();
        closed_ = true;
        in_.reader_gone = true; // like a kernel: what still comes is answered by a reset
        in_.ready.clear();
        in_.taken = 0;
        in_.readable.wake_all();
        out_.writable.wake_all();
    }
    [[nodiscard]] std::string peer_name() const override { return "sim:" + in_.from; }
    [[nodiscard]] const std::string& host() const noexcept { return in_.to; }
    [[nodiscard]] const std::string& other() const noexcept { return in_.from; }
    [[nodiscard]] std::string peer_host() const override {
        return link_->local ? std::string() : in_.from;
    }
    [[nodiscard]] duration unconfirmed() const noexcept override {
        return out_.under_way > 0 ? net_.loop_.now() - out_.confirmed : duration(0);
    }

    /// Breaks both ends: here now, there when the news arrives.
    void break_both() {
        net_.tell_broken(link_, out_, true);
        net_.tell_broken(link_, in_, false);
        here_broken_ = true;
        in_.readable.wake_all();
        out_.writable.wake_all();
    }
    /// The host dies without a word: its own tasks see errors, the peer nothing at all.
    void go_silent() {
        in_.reader_dead = true;
        out_.end_sent = true; // close() must not tell
        here_broken_ = true;
        in_.readable.wake_all();
        out_.writable.wake_all();
    }

private:
    struct flag_guard {
        explicit flag_guard(bool& held) noexcept : flag(held) {}
        flag_guard(const flag_guard&) = delete;
        ~flag_guard() { flag = false; }
        bool& flag;
    };

    [[nodiscard]] bool is_broken() const noexcept {
        return here_broken_ || in_.broken || out_.broken;
    }
    void check_open() const {
        if (closed_) throw error(errc::closed, "stream to " + peer_name() + " was closed");
    }
    [[noreturn]] void fail(const char* what) const {
        throw error(errc::reset, fmt::format("{} {} failed", what, peer_name()))
            .with_cause("simulated reset");
    }

    std::optional<std::size_t> take(mut_byte_span into) {
        check_open();
        if (here_broken_) fail("read from");
        if (in_.unread() == 0) {
            if (in_.broken) fail("read from");
            if (in_.end_arrived) return 0;
            return std::nullopt;
        }
        std::size_t n = std::min(into.size(), in_.unread());
        if (n > 1 && net_.loop_.draw(net_.faults_.partial_read)) {
            net_.counts_.add(fault::partial_read);
            n = 1 + static_cast<std::size_t>(net_.loop_.random().below(n - 1));
        }
        std::copy_n(in_.ready.begin() + static_cast<std::ptrdiff_t>(in_.taken), n, into.begin());
        in_.taken += n;
        if (in_.unread() == 0) {
            in_.ready.clear();
            in_.taken = 0;
        }
        in_.writable.wake_all(); // the window has opened
        return n;
    }

    std::size_t put_some(std::span<const byte_span> batch, std::size_t skip) {
        check_open();
        if (out_.broken || here_broken_) fail("write to");
        SKEIN_CHECK(!out_.end_sent, "a write after close_send");
        std::size_t total = 0;
        for (const auto& part : batch) total += part.size();
        total -= skip;
        if (total == 0) return 0;
        if (net_.loop_.draw(net_.faults_.reset)) {
            net_.counts_.add(fault::reset);
            break_both();
            fail("write to");
        }
        const std::size_t used = out_.under_way + out_.unread();
        const std::size_t left = net_.faults_.window > used ? net_.faults_.window - used : 0;
        // Like a kernel: a window that opens by a few bytes is not told of, or nothing but few bytes
        // would go at a time from then on.
        if (left < std::min(total, net_.faults_.window / 4)) return 0;
        std::size_t n = std::min(total, left);
        if (n > 1 && net_.loop_.draw(net_.faults_.partial_write)) {
            net_.counts_.add(fault::partial_write);
            n = 1 + static_cast<std::size_t>(net_.loop_.random().below(n - 1));
        }
        if (n == 0) return 0;
        pipe::item what;
        auto& bytes = what.bytes;
        bytes.reserve(n);
        for (auto part : batch) {
            const std::size_t drop = std::min(skip, part.size());
            skip -= drop;
            part = part.subspan(drop);
            append(bytes, part.first(std::min(part.size(), n - bytes.size())));
        }
        net_.send(link_, out_, std::move(what));
        return n;
    }

    network& net_;
    std::shared_ptr<link> link_;
    pipe& in_;
    pipe& out_;
    std::uint64_t number_;
    bool closed_ = false, here_broken_ = false, reading_ = false, writing_ = false;
};

class listener final : public net::listener {
public:
    explicit listener(std::shared_ptr<listener_state> state) : state_(std::move(state)) {}
    ~listener() override { close(); }

    task<std::unique_ptr<net::stream>> accept() override {
        const auto keep = state_;
        for (;;) {
            if (!keep->open)
                throw error(errc::closed, "listener at " + to_string(keep->at) + " is closed");
            if (!keep->pending.empty()) {
                auto next = std::move(keep->pending.front());
                keep->pending.pop_front();
                co_return next;
            }
            auto more = keep->waiting.wait();
            co_await more;
        }
    }
    [[nodiscard]] net::address local() const override { return state_->at; }
    void close() noexcept override {
        state_->open = false;
        state_->pending.clear();
        state_->waiting.wake_all();
    }

private:
    std::shared_ptr<listener_state> state_;
};

class host final : public net::network {
public:
    host(sim::network& on, std::string name) : net_(on), name_(std::move(name)) {}

    task<std::unique_ptr<net::stream>> connect(net::address to) override {
        return dial(this, std::move(to));
    }

    std::unique_ptr<net::listener> listen(net::address at) override {
        auto state = std::make_shared<listener_state>();
        if (at.is_unix()) {
            auto& slot = net_.paths_[name_ + "\n" + at.host];
            if (slot && slot->open) throw in_use(at);
            slot = state;
        } else {
            at.host = name_;
            if (at.port == 0) at.port = net_.next_port_++;
            auto& slot = net_.listeners_[{name_, at.port}];
            if (slot && slot->open) throw in_use(at);
            slot = state;
        }
        state->at = std::move(at);
        return std::make_unique<listener>(std::move(state));
    }

private:
    static error in_use(const net::address& at) {
        return error(errc::already_exists, "listen " + to_string(at) + ": the address is in use");
    }

    static task<std::unique_ptr<net::stream>> dial(host* self, net::address to) {
        sim::network& net = self->net_;
        const bool local = to.is_unix();
        const std::string there = local ? self->name_ : to.host;
        const std::string here = self->name_;
        auto first = sleep_for(net.draw_delay());
        co_await first;
        // A cut link: the kernel asks again and again, then gives up.
        for (int tries = 0; net.is_blocked(here, there) || net.is_blocked(there, here); ++tries) {
            if (tries == 20) {
                throw error(errc::timeout, "connect " + to_string(to) + " timed out");
            }
            auto wait = sleep_for(std::chrono::milliseconds(150));
            co_await wait;
        }
        std::shared_ptr<listener_state> state;
        if (local) {
            const auto found = net.paths_.find(here + "\n" + to.host);
            if (found != net.paths_.end()) state = found->second;
        } else {
            const auto found = net.listeners_.find(std::make_pair(there, to.port));
            if (found != net.listeners_.end()) state = found->second;
        }
        bool refused = !state || !state->open;
        if (!refused && net.loop_.draw(net.faults_.refuse)) {
            net.counts_.add(fault::connect_refused);
            refused = true;
        }
        if (refused) {
            throw error(errc::refused, "connect " + to_string(to) + " failed")
                .with_cause("connection refused")
                .with_hint("is the program there running?");
        }
        const auto link = net.make_link(here, there, local);
        state->pending.push_back(std::make_unique<stream>(net, link, false));
        state->waiting.wake_one();
        auto mine = std::make_unique<stream>(net, link, true);
        auto second = sleep_for(net.draw_delay());
        co_await second;
        co_return mine;
    }

    sim::network& net_;
    std::string name_;
};

} // namespace detail

SKEIN_INLINE network::network(sim::loop& on, sim::faults faults)
    : loop_(on), faults_(faults), clock_random_(on.seed(), 2) {}
SKEIN_INLINE network::~network() = default;

SKEIN_INLINE void network::block(const std::string& from, const std::string& to) {
    if (blocked_.insert({from, to}).second) counts_.add(fault::block);
}

SKEIN_INLINE void network::partition(const std::string& a, const std::string& b) {
    counts_.add(fault::partition);
    blocked_.insert({a, b});
    blocked_.insert({b, a});
}

SKEIN_INLINE void network::begin_link_faults() {
    if (faults_.link_fault_every > duration(0)) schedule_link_fault();
}

SKEIN_INLINE void network::stop_faults() {
    faults_.slow_chunk = faults_.refuse = faults_.reset = faults_.flip = faults_.disk_io = 0;
    faults_.link_fault_every = duration(0);
    clocks_.jump_every = duration(0); // rates stay as they are: nobody mends a clock
    heal_all();
}

SKEIN_INLINE void network::heal(const std::string& a, const std::string& b) {
    counts_.add(fault::heal);
    blocked_.erase({a, b});
    blocked_.erase({b, a});
    release_held();
}

SKEIN_INLINE void network::heal_all() {
    if (!blocked_.empty()) counts_.add(fault::heal);
    blocked_.clear();
    release_held();
}

SKEIN_INLINE duration network::draw_delay() {
    duration d = loop_.draw_delay(faults_.least_delay, faults_.most_delay);
    if (loop_.draw(faults_.slow_chunk)) {
        counts_.add(fault::delay);
        d += loop_.draw_delay(duration(0), faults_.slow_delay);
    }
    return d;
}

SKEIN_INLINE net::network& network::host(const std::string& name) {
    auto& slot = hosts_[name];
    if (!slot) slot = std::make_unique<detail::host>(*this, name);
    return *slot;
}

SKEIN_INLINE network::link_ptr network::make_link(const std::string& from, const std::string& to,
                                                  bool local) {
    auto link = std::make_shared<detail::link>();
    links_.emplace(++next_link_, link);
    link->local = local;
    link->forward.from = link->back.to = from;
    link->forward.to = link->back.from = to;
    return link;
}

SKEIN_INLINE std::pair<std::unique_ptr<net::stream>, std::unique_ptr<net::stream>> network::
    connected_pair(const std::string& first, const std::string& second) {
    const auto link = make_link(first, second, first == second);
    auto one = std::make_unique<detail::stream>(*this, link, true);
    return {std::move(one), std::make_unique<detail::stream>(*this, link, false)};
}

SKEIN_INLINE void network::isolate(const std::string& name) {
    for (const auto& [other, host] : hosts_) {
        if (other != name) partition(name, other);
    }
}

SKEIN_INLINE void network::send(const link_ptr& link, detail::pipe& pipe, detail::pipe::item what) {
    if (!what.bytes.empty() && !link->local && loop_.draw(faults_.flip)) {
        counts_.add(fault::bit_flip);
        const auto bit = loop_.random().below(what.bytes.size() * 8);
        what.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    if (pipe.under_way == 0) pipe.confirmed = loop_.now();
    pipe.under_way += what.bytes.size();
    const auto arrival = std::max(loop_.now() + draw_delay(), pipe.last_arrival + duration(1));
    pipe.last_arrival = arrival;
    loop_.at(arrival, [this, link, &pipe, what = std::move(what)]() mutable {
        arrive(link, pipe, std::move(what));
    });
}

/// Cut links hold what comes, in order; it is delivered after they heal.
SKEIN_INLINE void network::arrive(const link_ptr& link, detail::pipe& pipe,
                                  detail::pipe::item what) {
    if (!pipe.held.empty() || is_blocked(pipe.from, pipe.to)) {
        pipe.held.push_back(std::move(what));
        return;
    }
    deliver(link, pipe, std::move(what));
}

SKEIN_INLINE void network::deliver(const link_ptr& link, detail::pipe& pipe,
                                   detail::pipe::item what) {
    if (pipe.reader_dead) return; // nobody answers; the sender's window fills up
    pipe.under_way -= what.bytes.size();
    pipe.confirmed = loop_.now();
    if (pipe.broken) return;
    if (pipe.reader_gone) {
        if (!what.end) tell_broken(link, pipe, false);
        return;
    }
    append(pipe.ready, what.bytes);
    if (what.end) pipe.end_arrived = true;
    pipe.readable.wake_all();
}

/// The news of a reset travels to one end of a pipe, unless its way is cut (then that end stays
/// half open: resets are not sent twice).
SKEIN_INLINE void network::tell_broken(const link_ptr& link, detail::pipe& pipe, bool to_reader) {
    loop_.after(draw_delay(), [this, link, &pipe, to_reader] {
        if (to_reader ? is_blocked(pipe.from, pipe.to) : is_blocked(pipe.to, pipe.from)) return;
        pipe.broken = true;
        pipe.readable.wake_all();
        pipe.writable.wake_all();
    });
}

SKEIN_INLINE void network::release_held() {
    for (auto at = links_.begin(); at != links_.end();) {
        if (const auto link = at->second.lock()) {
            release(link, link->forward);
            release(link, link->back);
            ++at;
        } else {
            at = links_.erase(at);
        }
    }
}

SKEIN_INLINE void network::release(const link_ptr& link, detail::pipe& pipe) {
    if (pipe.held.empty() || pipe.release_pending || is_blocked(pipe.from, pipe.to)) return;
    pipe.release_pending = true;
    loop_.after(draw_delay(), [this, link, &pipe] {
        pipe.release_pending = false;
        while (!pipe.held.empty() && !is_blocked(pipe.from, pipe.to)) {
            auto what = std::move(pipe.held.front());
            pipe.held.pop_front();
            deliver(link, pipe, std::move(what));
        }
    });
}

SKEIN_INLINE void network::crash(const std::string& name, bool loudly) {
    counts_.add(fault::crash);
    for (auto& [key, state] : listeners_) {
        if (key.first == name) detail::listener(state).close();
    }
    for (auto& [key, state] : paths_) {
        if (key.starts_with(name + "\n")) detail::listener(state).close();
    }
    std::vector<detail::stream*> mine;
    for (auto& [number, s] : streams_) {
        if (s->host() == name) mine.push_back(s);
    }
    for (auto* s : mine) {
        if (loudly) {
            s->break_both();
        } else {
            s->go_silent();
        }
    }
}

SKEIN_INLINE void network::reset(const std::string& a, const std::string& b) {
    counts_.add(fault::reset);
    std::vector<detail::stream*> hit;
    for (auto& [number, s] : streams_) {
        if (s->host() == a && s->other() == b) hit.push_back(s);
    }
    for (auto* s : hit) s->break_both();
}

SKEIN_INLINE void network::schedule_link_fault() {
    const auto pause = loop_.draw_delay(faults_.link_fault_every / 2, faults_.link_fault_every * 2);
    loop_.after(pause, [this] {
        if (faults_.link_fault_every == duration(0)) return;
        if (hosts_.size() >= 2) {
            const auto pick = [&](std::uint64_t n) {
                auto at = hosts_.begin();
                std::advance(at, static_cast<std::ptrdiff_t>(n));
                return at->first;
            };
            const std::uint64_t n = loop_.random().below(hosts_.size());
            const std::uint64_t m =
                (n + 1 + loop_.random().below(hosts_.size() - 1)) % hosts_.size();
            const std::string a = pick(n), b = pick(m);
            switch (loop_.random().below(3)) {
            case 0: block(a, b); break;
            case 1: partition(a, b); break;
            default: reset(a, b); break;
            }
            loop_.after(loop_.draw_delay(duration(0), faults_.link_fault_lasts),
                        [this, a, b] { heal(a, b); });
        }
        schedule_link_fault();
    });
}

SKEIN_INLINE void network::draw_clocks() { give_clocks(clock_faults::draw(clock_random_)); }

SKEIN_INLINE void network::give_clocks(const clock_faults& how) {
    SKEIN_CHECK(loops_.empty(), "hosts run by their clocks already");
    clocks_ = how;
    has_clocks_ = how.any();
    if (clocks_.jump_every > duration(0)) schedule_clock_jump();
}

SKEIN_INLINE skein::loop& network::loop_of(const std::string& host) {
    if (!has_clocks_) return loop_;
    auto& slot = loops_[host];
    if (!slot) {
        const auto how = clocks_.draw_one(clock_random_);
        if (how.parts_per_billion != 0) counts_.add(fault::drift);
        slot = std::make_unique<host_loop>(loop_, how);
        slot->set_wall_forward(
            std::chrono::seconds(1'700'000'000)); // jumps lead to no time before 1970
    }
    return *slot;
}

SKEIN_INLINE void network::schedule_clock_jump() {
    const auto most = static_cast<std::uint64_t>(2 * clocks_.jump_every.count());
    const auto pause = duration(static_cast<std::int64_t>(clock_random_.below(most)));
    loop_.after(pause, [this] {
        if (clocks_.jump_every == duration(0)) return;
        if (!loops_.empty()) {
            auto at = loops_.begin();
            std::advance(at, static_cast<std::ptrdiff_t>(clock_random_.below(loops_.size())));
            const auto most_jump = clocks_.most_jump.count();
            const auto width = static_cast<std::uint64_t>(2 * most_jump) + 1;
            at->second->set_wall_forward(std::chrono::milliseconds(
                static_cast<std::int64_t>(clock_random_.below(width)) - most_jump));
            counts_.add(fault::clock_jump);
        }
        schedule_clock_jump();
    });
}

} // namespace skein::sim
