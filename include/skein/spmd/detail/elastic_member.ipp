// SPDX-License-Identifier: Apache-2.0
#pragma once
// The control thread of an elastic_member, and a world as the training layers see it.

#include <skein/core/awaitable.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/meeting.hpp>

#include <charconv>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE bool is_elastic_rank(const variable_reader& read) {
    return read(elastic_variable).has_value();
}

namespace detail {

/// "1:4".
SKEIN_INLINE std::pair<int, int> read_workers(const std::string& text) {
    int least = 0, most = 0;
    const auto* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, least);
    if (first.ec == std::errc() && first.ptr != end && *first.ptr == ':') {
        const auto second = std::from_chars(first.ptr + 1, end, most);
        if (second.ec == std::errc() && second.ptr == end && least >= 1 && most >= least)
            return {least, most};
    }
    throw error(errc::invalid_argument, fmt::format("{} is '{}'", elastic_workers_variable, text))
        .with_hint("least:most, as in 1:4");
}

SKEIN_INLINE std::string need_variable(const variable_reader& read, const char* name) {
    auto value = read(name);
    if (value) return *value;
    throw error(errc::not_found, fmt::format("no elastic job has started this process: {} is not "
                                             "set",
                                             name));
}

} // namespace detail

class elastic_member::impl {
public:
    impl(elastic_member_options options, const variable_reader& read)
        : options_(std::move(options)),
          secret(net::token::from_hex(detail::need_variable(read, token_variable)).value()),
          control_("control") {
        const auto at = detail::need_variable(read, elastic_variable);
        const auto number = detail::need_variable(read, elastic_id_variable);
        std::tie(least, most) =
            detail::read_workers(detail::need_variable(read, elastic_workers_variable));
        detail::elastic_client_options how;
        how.id = id = std::strtoull(number.c_str(), nullptr, 10);
        how.pid = ::getpid();
        how.host = proc::host_name();
        how.door = net::address::parse(at).value();
        how.secret = secret;
        how.settings = options_.settings;
        how.join_deadline = options_.join_deadline;
        control_.run([&] { return begin(std::move(how)); });
    }
    ~impl() {
        control_.run([this] { return end(); });
    }
    impl(const impl&) = delete;
    impl& operator=(const impl&) = delete;

    using place_ptr = std::shared_ptr<detail::elastic_place>;

    place_ptr next(world_end last, const std::string& why) {
        {
            const std::lock_guard lock(mutex_);
            newest_ = nullptr;
        }
        auto into = control_.run([&] { return state_->client.next(last, why); });
        const std::lock_guard lock(mutex_);
        newest_ = into;
        if (into) change_ = into->begin.now;
        return into;
    }
    [[nodiscard]] place_ptr newest() const {
        const std::lock_guard lock(mutex_);
        return newest_;
    }
    [[nodiscard]] view last_view() const {
        const std::lock_guard lock(mutex_);
        return change_;
    }
    std::vector<byte_buffer> exchange(const place_ptr& in, std::string key, byte_buffer mine) {
        return control_.run([&] { return exchange_within(in, std::move(key), std::move(mine)); });
    }
    void tell(std::string key, byte_buffer what) {
        control_.run([&] { return tell_group(newest(), std::move(key), std::move(what)); });
    }
    void ask_to_leave(std::string why) {
        control_.run([&] { return ask(std::move(why)); });
    }
    void leave() {
        control_.run([this] { return state_->client.leave(); });
    }
    void fail(const error& why) {
        control_.run([&] { return state_->client.fail(why); });
    }

    const elastic_member_options options_;
    const net::token secret;
    std::uint64_t id = 0;
    int least = 1, most = 1;
    detail::elastic_wishes wishes;

private:
    /// What lives on the control thread.
    struct on_thread {
        on_thread(net::real_loop& loop, detail::elastic_client_options how,
                  detail::elastic_wishes& wishes)
            : network(loop), client(network, std::move(how), wishes) {}
        net::real_network network;
        detail::elastic_client client;
    };

    task<void> begin(detail::elastic_client_options how) {
        state_ = std::make_unique<on_thread>(control_.loop(), std::move(how), wishes);
        std::exception_ptr failure;
        try {
            auto connecting = state_->client.connect();
            co_await connecting;
        } catch (...) {
            failure = std::current_exception();
        }
        if (!failure) co_return;
        auto ended = end();
        co_await ended;
        std::rethrow_exception(failure);
    }
    task<void> end() {
        if (!state_) co_return;
        auto closed = state_->client.close();
        co_await closed;
        state_.reset();
    }
    task<void> ask(std::string why) {
        state_->client.ask_to_leave(why);
        co_return;
    }
    task<std::vector<byte_buffer>> exchange_within(place_ptr in, std::string key,
                                                   byte_buffer mine) {
        if (!in->client || in != state_->client.place())
            throw error(errc::closed,
                        fmt::format("exchange of '{}' in a world that has ended", key));
        auto exchanged =
            with_timeout(in->client->exchange(key, std::move(mine)), options_.exchange_deadline);
        try {
            co_return co_await exchanged;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
            throw error(errc::timeout,
                        fmt::format("rank {} waited {:.3g} s for the other ranks at '{}'",
                                    in->begin.rank, to_seconds(options_.exchange_deadline), key));
        }
    }
    task<void> tell_group(place_ptr in, std::string key, byte_buffer what) {
        if (!in || !in->client) throw error(errc::closed, "a word after the last world has ended");
        in->client->tell(std::move(key), std::move(what));
        co_return;
    }

    std::unique_ptr<on_thread> state_;
    mutable std::mutex mutex_; // guards newest_ and change_
    place_ptr newest_;
    view change_;
    net::loop_thread control_;
};

namespace detail {

/// A world of a member, which outlives it.
template <class Impl>
class elastic_rendezvous final : public rendezvous {
public:
    elastic_rendezvous(Impl& of, std::shared_ptr<elastic_place> in)
        : member_(of), in_(std::move(in)) {}

    [[nodiscard]] int rank() const override { return in_->begin.rank; }
    [[nodiscard]] int world_size() const override { return static_cast<int>(in_->members.size()); }
    [[nodiscard]] int local_rank() const override { return mine().local_rank; }
    [[nodiscard]] int local_size() const override { return mine().local_size; }
    [[nodiscard]] int generation() const override {
        return static_cast<int>(in_->begin.now.generation);
    }
    [[nodiscard]] std::string host() const override { return mine().host; }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        return member_.exchange(in_, std::string(key), to_buffer(mine));
    }
    [[nodiscard]] net::token secret() const override {
        return net::token::from_hex(in_->begin.secret).value();
    }
    [[nodiscard]] subscription on_lost(loss_listeners::listener lost) override {
        return in_->losses.add(std::move(lost));
    }

private:
    [[nodiscard]] const member_info& mine() const {
        return in_->members[static_cast<std::size_t>(in_->begin.rank)];
    }

    Impl& member_;
    std::shared_ptr<elastic_place> in_;
};

} // namespace detail

SKEIN_INLINE elastic_member::elastic_member(elastic_member_options options,
                                            const variable_reader& read)
    : impl_(std::make_unique<impl>(std::move(options), read)) {}
SKEIN_INLINE elastic_member::~elastic_member() = default;

SKEIN_INLINE std::uint64_t elastic_member::id() const { return impl_->id; }
SKEIN_INLINE int elastic_member::least() const { return impl_->least; }
SKEIN_INLINE int elastic_member::most() const { return impl_->most; }

SKEIN_INLINE std::unique_ptr<rendezvous> elastic_member::next(world_end last, const std::string& why) {
    auto place = impl_->next(last, why);
    if (!place) return nullptr;
    return std::make_unique<detail::elastic_rendezvous<impl>>(*impl_, std::move(place));
}
SKEIN_INLINE world_change elastic_member::change() const {
    const auto now = impl_->last_view();
    world_change how;
    how.generation = now.generation;
    how.world_size = static_cast<int>(now.members.size());
    how.why = now.why;
    return how;
}
SKEIN_INLINE bool elastic_member::change_wanted() const noexcept {
    return impl_->wishes.change.load();
}
SKEIN_INLINE bool elastic_member::stop_wanted() const noexcept { return stop_signal() != 0; }
SKEIN_INLINE int elastic_member::stop_signal() const noexcept {
    return impl_->wishes.stop_signal.load();
}
SKEIN_INLINE void elastic_member::wait_while_held() {
    const auto place = impl_->newest();
    if (!place) throw error(errc::closed, "this rank is in no world");
    auto& wishes = impl_->wishes;
    std::optional<error> lost; // guarded as `held`
    auto watching = place->losses.add([&](int, const error& why) {
        const std::lock_guard lock(wishes.mutex);
        lost = why;
        wishes.changed.notify_all();
    });
    std::unique_lock lock(wishes.mutex);
    wishes.changed.wait(lock, [&] { return !wishes.holds() || lost; });
    const auto why = lost;
    lock.unlock();
    watching.reset();
    if (why) throw *why;
}
SKEIN_INLINE void elastic_member::ask_to_leave(const std::string& why) { impl_->ask_to_leave(why); }
SKEIN_INLINE std::vector<member_info> elastic_member::members() const {
    const auto place = impl_->newest();
    return place ? place->members : std::vector<member_info>();
}
SKEIN_INLINE byte_buffer elastic_member::given() const {
    const auto place = impl_->newest();
    return place ? place->given : byte_buffer();
}
SKEIN_INLINE void elastic_member::tell(std::string_view key, byte_span what) {
    impl_->tell(std::string(key), to_buffer(what));
}
SKEIN_INLINE bool elastic_member::wait_lost(time_span limit) {
    const auto place = impl_->newest();
    return place && place->losses.wait(limit);
}
SKEIN_INLINE void elastic_member::leave() { impl_->leave(); }
SKEIN_INLINE void elastic_member::fail(const error& why) { impl_->fail(why); }

} // namespace skein::spmd
