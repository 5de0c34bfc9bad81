// SPDX-License-Identifier: Apache-2.0
#pragma once
// The namespaces of a cluster: each has one space server at most, a driver that the head has
// started, and visitors, other drivers that hear when it is lost.
//
// A namespace has no space server (another one may be started once the last one surely lives no
// more), one that starts, or one that its visitors may enter. A head that was started again does not
// know yet which namespaces have one: it takes none for free until a space server that lives has
// come back, or surely lives no more.
//
//     struct head : space_drivers { ... };             // starts and ends space servers, tells drivers
//     namespaces spaces(loop, head, options);
//     spaces.serve(service, asker);                    // enter_space, for each link
//     spaces.came(driver, "prod", visits);             // a driver has said hello
//     spaces.over(driver, "killed by signal 9", true); // its process has ended: visitors are told by look()
//     spaces.look();                                   // what time brings, now and then

#include <skein/core/config.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/cluster/detail/tool_messages.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/requests.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace skein::cluster::detail {

inline constexpr std::size_t most_spaces = 4096, most_space_bytes = 255;

/// What namespaces ask of the head that has them. Drivers are named by their incarnations.
class space_drivers {
public:
    /// A driver as it is at a moment; the pointers are good until something of it changes.
    struct driver_now {
        const driver_hello* hello = nullptr; ///< of a space server that starts: of its program
        const std::string* seen_from = nullptr;
        bool has_come = false, is_connected = false;
        bool is_ending = false; ///< it does not come back
    };

    [[nodiscard]] virtual std::optional<driver_now> find_driver(std::uint64_t driver) const = 0;
    /// Whether the head is closed, and serves nobody any more.
    [[nodiscard]] virtual bool is_closed() const = 0;
    /// A new driver that is to be a space server, of the program of `by`.
    virtual std::uint64_t make_server(const driver_hello& by) = 0;
    /// Has its process started.
    virtual void start_server(std::uint64_t driver) = 0;
    /// Its node is expected back: nobody could end it now.
    [[nodiscard]] virtual bool is_out_of_reach(std::uint64_t driver) const = 0;
    [[nodiscard]] virtual std::uint32_t workers_of(std::uint64_t driver) const = 0;
    /// Ends its link and its workers; over() may come at once.
    virtual void end_server(std::uint64_t driver, job_end as, const error& why) = 0;
    virtual void tell_space_lost(std::uint64_t driver, const space_lost& news) = 0;

protected:
    space_drivers() = default;
    space_drivers(const space_drivers&) = default;
    space_drivers& operator=(const space_drivers&) = default;
    ~space_drivers() = default;
};

/// When a namespace may have another space server.
struct namespaces_options {
    duration settle{}; ///< a first head waits so long for space servers that live
    duration fence{};  ///< a space server whose end nobody saw has ended after that
    logging::level news = logging::level::info;
    /// The secret of a space server for a driver, sealed with that one's key.
    std::function<byte_buffer(std::uint64_t driver, std::uint64_t server)> secret_for{};
};

/// Belongs to one loop.
class namespaces {
public:
    /// All must outlive it.
    namespaces(loop& on, space_drivers& drivers, namespaces_options options)
        : loop_(on), drivers_(drivers), options_(std::move(options)), begun_(on.now()) {}

    /// Answers enter_space over one link.
    ///   asker  the driver at its other end now; 0: it is none, or has gone
    void serve(net::request_service& service, std::function<std::uint64_t()> asker);
    /// Ends a space server, and with it all of its actors. Another one can be had when its process
    /// has ended.
    ///   errors  not_found: there is no such namespace; peer_lost: its node is away
    [[nodiscard]] stop_space_reply stop(const std::string& name);
    /// Ends what is not counted on any more, tells visitors of what they have lost, and forgets
    /// namespaces that nobody has asked for since.
    void look();

    /// A head was there before this one.
    void had_head() noexcept { had_head_ = true; }
    /// A driver says that it is the space server of a namespace.
    ///   errors  already_exists: that has another one; exhausted
    void check(const std::string& name, std::uint64_t driver);
    /// A driver has said hello.
    ///   name    its namespace; "": it is no space server
    ///   visits  the space servers that it counts on
    void came(std::uint64_t driver, const std::string& name, std::vector<visited_space> visits);
    /// A node holds the process of a driver that is a space server. False: the namespace has
    /// another one, or the driver another namespace.
    [[nodiscard]] bool claim(const std::string& name, std::uint64_t driver);
    /// A space server lives no more, or will not; nothing for other drivers.
    ///   is_seen  its process has ended for sure
    void over(std::uint64_t driver, const std::string& why, bool is_seen);
    /// Forgets a driver that will not come back.
    void forget_driver(std::uint64_t driver);

    /// The namespace of a space server; "" for other drivers.
    [[nodiscard]] const std::string& name_of(std::uint64_t driver) const;
    [[nodiscard]] std::size_t size() const noexcept { return by_name_.size(); }

private:
    /// A namespace, as long as it has a space server or one that may live.
    struct entry {
        std::uint64_t server = 0;  ///< the incarnation of its driver; 0: none
        std::uint64_t started = 0; ///< how often
        std::uint64_t failed = 0;  ///< which of these starts failed last
        bool is_known = false;     ///< this head has had a space server for it
        std::string why;           ///< the last one has ended
        time_point free_at{};      ///< before that it may live still
        bool is_stopped = false;   ///< the space server that there is was asked to end
    };

    static task<space_entered> enter(namespaces* self, std::function<std::uint64_t()> asker,
                                     enter_space m);
    [[nodiscard]] std::optional<space_entered> entered(const enter_space& m, entry& space,
                                                       std::uint64_t driver);
    void start(const std::string& name, entry& space, const driver_hello& by);
    void check_exact(const enter_space& m) const;
    void check_room(const std::string& name) const;
    [[nodiscard]] time_point free_at(const entry& space) const;
    [[nodiscard]] bool is_lost(const visited_space& visit) const;
    void tell_lost(const std::string& name, std::uint64_t server, const std::string& why);

    loop& loop_;
    space_drivers& drivers_;
    namespaces_options options_;
    time_point begun_;
    bool had_head_ = false;
    std::map<std::string, entry> by_name_;
    std::map<std::uint64_t, std::string> names_;                 ///< of space servers
    std::map<std::uint64_t, std::vector<visited_space>> visits_; ///< by the driver that visits
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/namespaces.ipp>
#endif
