// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver's side of its head: the leases and placement groups that it asks for, and what its
// workers print.
//
// A lease is wanted, told (a head has heard of it), granted (it has a node), and ended (the head
// says so). It stands here from want() until give_back(), with a link or without: the next hello
// says all that is there, and what changed while that was under way is told after the welcome. A
// hello has no place for the order of a rank: such a lease is wanted again, unless it was told and
// its grant has not come, for then it may run.
//
//     struct pool : head_events { ... };              // what a grant and an end mean
//     head_client head(loop, network, std::move(link), print, "workers", &stopping, events, groups);
//     scope.spawn(head.serve());                      // until `stopping` is set
//     head.want({1, "cpu=1"});                        // events.on_granted, on_ended
//     head.give_back(1);

#include <skein/core/config.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/heard_output.hpp>
#include <skein/cluster/detail/load_messages.hpp>
#include <skein/core/event.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace skein::cluster::detail {

/// What a driver hears of the groups that it has asked for.
class group_events {
public:
    virtual void on_group_placed(const group_placed& m) = 0;
    virtual void on_group_waits(const group_waits& m) = 0;
    virtual void on_group_refused(const group_refused& m) = 0;

protected:
    group_events() = default;
    group_events(const group_events&) = default;
    group_events& operator=(const group_events&) = default;
    ~group_events() = default;
};

/// What it hears else: of leases that it has asked for, and on_ended and on_recalled also of the
/// space server's own one.
class head_events {
public:
    /// This driver, for a hello: all but `again`, `prints`, its leases and groups. There is a link.
    [[nodiscard]] virtual driver_hello describe() = 0;
    virtual void on_welcome(const driver_welcome& m) = 0;
    /// Its worker, for people; empty: it is not known.
    [[nodiscard]] virtual std::string worker_of(std::uint64_t lease) const = 0;
    virtual void on_granted(const lease_granted& m) = 0;
    virtual void on_ended(const lease_ended& m) = 0;
    /// The link broke before the answer to a rank's order.
    virtual void on_unanswered(std::uint64_t) {}
    virtual void on_waits(const lease_waits&) {}
    virtual void on_recalled(const lease_recalled& m) = 0;
    virtual void on_cluster_changed(const cluster_changed&) {}
    virtual void on_space_lost(const space_lost&) {}
    /// Gives what to say of it.
    ///   errors  whatever is wrong with that wish
    [[nodiscard]] virtual std::string on_scale(int workers);

protected:
    head_events() = default;
    head_events(const head_events&) = default;
    head_events& operator=(const head_events&) = default;
    ~head_events() = default;
};

/// Belongs to one loop.
class head_client final : output_events {
public:
    /// `goes_on` while the head is away, for people. All but the link's options must outlive it.
    head_client(loop& on, net::network& via, head_link_options link, proc::print_lines print,
                const char* goes_on, event* stopping, head_events& events, group_events& groups);

    /// Keeps the link until `stopping` is set.
    ///   errors  closed: the cluster was stopped; those of joining, with what to do; cancelled
    [[nodiscard]] task<void> serve() { return keep_joined(this); }
    /// Says goodbye.
    [[nodiscard]] task<void> part() { return link_.part(); }

    void want(want_lease wish);
    /// The worker of that lease has come, maybe before the news of its grant.
    void has_come(std::uint64_t lease);
    /// The lease is not needed any more.
    void give_back(std::uint64_t lease);
    /// Has its worker end, and waits for that; one that is not there yet is given back.
    void end(std::uint64_t lease, bool at_once);
    void set_blocked(std::uint64_t lease, bool on);
    /// Tells the head that a lease which it has asked back cannot be given back.
    void keep(std::uint64_t lease, std::string why) {
        tell_unless_stopping(keep_lease{lease, std::move(why)});
    }
    /// The same, that it will be.
    void leave(std::uint64_t lease, bool moves, std::string why) {
        tell_unless_stopping(lease_leaves{lease, moves, std::move(why)});
    }
    void want_group(known_group group);
    void drop_group(std::uint64_t group);
    /// The leases in it are leases of their own from now on.
    void loosen_group(std::uint64_t group);
    /// The head drops it with the driver, or the next hello does.
    void forget_group(std::uint64_t group) { groups_.erase(group); }

    /// See head_link.
    template <class Reply, class M>
    [[nodiscard]] task<Reply> ask(M m) {
        return link_.template ask<Reply>(std::move(m));
    }
    [[nodiscard]] const head_link& link() const noexcept { return link_; }
    /// Whether what is asked for reaches the head now; else the next hello says it.
    [[nodiscard]] bool is_asking() const noexcept {
        return link_.is_joined() && !stopping_->is_set();
    }
    [[nodiscard]] heard_output& output() noexcept { return output_; }
    /// How many calls there were, for the head's numbers, if that is news.
    void tell_calls(const driver_calls& now);

private:
    struct asked_lease {
        want_lease wish;
        std::uint64_t node = 0; ///< the incarnation of its agent; 0: not granted yet
        bool is_told = false, has_come = false, is_ended = false;
        std::optional<bool> blocked, ends; ///< said again to the next head; ends: at once
    };
    struct asked_group {
        known_group known;
        bool is_told = false;
    };

    static task<void> keep_joined(head_client* self);
    static task<void> say_hello(head_client* self);
    [[nodiscard]] driver_hello hello();
    [[nodiscard]] std::shared_ptr<net::request_service> make_service();
    void serve_groups(net::request_service& of);
    void lose_unanswered();
    template <class M>
    bool tell_unless_stopping(M m) {
        return is_asking() && link_.tell(std::move(m));
    }
    void tell(asked_group& g);

    std::string name_of(std::uint64_t lease) const override { return events_.worker_of(lease); }
    void printed(std::uint64_t node) override { (void)link_.tell(output_printed{node}); }
    bool is_output_coming() const override { return link_.is_joined(); }

    net::address head_;
    event* stopping_;
    head_events& events_;
    group_events& group_events_;
    heard_output output_;
    std::map<std::uint64_t, asked_lease> leases_;
    std::map<std::uint64_t, asked_group> groups_;
    driver_calls told_calls_;
    head_link link_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/head_client.ipp>
#endif
