// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group: the ranks of one training world, who meet, exchange small blobs, and learn at once when
// one of them is lost.
//
// One group_server (in the supervisor, or beside rank 0) and one group_client per rank, over
// ordinary connections, in either world. A group forms once, with every rank present, and ends
// once: when all ranks have left, or when the first of them is lost. Then every other rank is told
// who and why. A new attempt is a new group with the next generation.
//
//   joining --all there--> running --all left--> ended
//      \--deadline--------------\--rank lost or failed, abort()--> failed, with culprit and reason

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/address.hpp>
#include <skein/net/limits.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class acceptor;
class admission;
class connection;
class network;
class stream;
struct frame;
} // namespace skein::net

namespace skein::spmd {

/// What a rank says of itself when it joins.
struct member_info {
    std::int32_t rank = 0;
    std::int32_t world_size = 1;
    std::int32_t local_rank = 0;
    std::int32_t local_size = 1;
    std::string host;
    std::int64_t pid = 0;
    std::string job;            ///< group_options::job
    std::int32_t attempt = 0;   ///< group_options::generation
    std::uint64_t settings = 0; ///< hash of group_options::settings
};

/// How a group ended: no failure = every rank left in order.
struct group_outcome {
    std::optional<error> failure;
    int culprit = -1;      ///< the rank that was lost or failed; -1 if nobody in particular
    bool reported = false; ///< the culprit said so itself; otherwise it fell silent or died
    std::map<std::string, byte_buffer> told{}; ///< what rank 0 has told, the newest of each key
};

/// What a group's server knows before the first rank joins.
struct group_options {
    int world_size = 1;
    int generation = 0;
    std::string job{}; ///< a rank of another job is refused, and so is one of another generation
    /// What all ranks must have alike. The server's own count; if it has none, those of the rank
    /// that joins first. A rank of this job that has others ends the group.
    std::vector<setting> settings{};
    net::token secret{};
    time_span join_deadline = time_constants::lan().rendezvous_timeout;
    bool is_up = false; ///< ranks hear of the server when it listens: refused means that it is over
    std::size_t max_blob = std::size_t{16} << 20; ///< bytes of one rank's blob in an exchange
    net::keep_alive alive{net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
                          time_constants::lan().suspect_after, time_constants::lan().dead_after};
    byte_buffer given{};       ///< what the server gives every rank when all are there
    std::size_t most_told = 0; ///< bytes that rank 0 may tell the server, all keys together
    /// Of elastic jobs: a rank that fails is to the others one that is lost, and not a reason of
    /// their own to fail.
    bool failure_is_loss = false;
};

/// The meeting point. Lives on the loop that made it.
class group_server {
public:
    /// Listens at once (port 0: any). `via` must outlive it.
    ///   errors  permission_denied: other hosts can reach the address, and there is no token
    group_server(net::network& via, net::address at, group_options options);
    ~group_server();

    [[nodiscard]] net::address local() const;

    /// Serves the group until it ends; all connections are closed by then. Await it once.
    [[nodiscard]] task<group_outcome> run();

    /// Ends the group as failed, for a reason from outside (a child process died).
    void abort(error why, int culprit = -1);
    /// The ranks that have not joined yet, for messages.
    [[nodiscard]] std::vector<int> missing() const;
    /// True when the rank has joined and left in order, or has said that it fails.
    [[nodiscard]] bool has_left(int rank) const;
    /// True when the rank has said that it fails.
    [[nodiscard]] bool has_failed(int rank) const;

private:
    struct member;
    task<void> accept_all();
    task<void> serve(std::unique_ptr<net::stream> from, net::admission* place);
    task<void> serve_member(std::shared_ptr<net::connection> link, member* self);
    task<void> watch_deadline();
    [[nodiscard]] result<member*> admit(std::shared_ptr<net::connection> link,
                                        const net::frame& first);
    [[nodiscard]] std::optional<error> objection(const member_info& to,
                                                 const std::vector<setting>& settings);
    void handle(member& from, const net::frame& f);
    void contribute(member& from, const net::frame& f);
    void note(const member& from, const net::frame& f);
    void start_if_complete();
    void end(group_outcome how);
    void tell_everyone();

    group_options options_;
    std::unique_ptr<net::acceptor> door_;
    std::vector<std::unique_ptr<member>> members_; ///< by rank; null until joined
    int settings_of_ = 0;                          ///< whose options_.settings are
    std::map<std::string, std::vector<std::optional<byte_buffer>>> exchanges_;
    std::map<std::string, byte_buffer> told_;
    std::optional<group_outcome> outcome_;
    bool running_ = false;
    event ended_;
    scope children_;
};

/// One rank's end of its group.
class group_client {
public:
    /// Told once, when another rank is lost or fails, or when the server is.
    using lost_callback = unique_function<void(int rank, const error& why)>;

    /// Connects (again and again until the deadline: the server may not be up yet), joins, and
    /// waits until all ranks are there.
    ///   errors  timeout, permission_denied, mismatch (another job, attempt, world size or
    ///           setting), already_exists (rank taken), cancelled (then the others are told)
    static task<std::unique_ptr<group_client>> join(net::network& via, net::address at,
                                                    member_info self, group_options options,
                                                    lost_callback lost);
    ~group_client();

    /// Every rank's blob in rank order; see rendezvous::exchange.
    [[nodiscard]] task<std::vector<byte_buffer>> exchange(std::string key, byte_buffer mine);
    /// Rank 0 tells the server something, for whoever reads its outcome: the newest of a key
    /// counts. Sent in order with all else; waits for nobody.
    ///   errors  usage: another rank; what the group was lost for
    void tell(std::string key, byte_buffer what);
    /// This rank is done: leaves in order and waits until the server has seen it.
    [[nodiscard]] task<void> leave();
    /// This rank fails; the server and all others are told why.
    [[nodiscard]] task<void> fail(error why);
    /// Ends this end without a word: the group is of no use any more. One that goes on takes it for
    /// the loss of this rank.
    [[nodiscard]] task<void> drop();

    [[nodiscard]] const std::vector<member_info>& members() const noexcept { return members_; }
    [[nodiscard]] int generation() const noexcept { return generation_; }
    /// group_options::given of the server.
    [[nodiscard]] const byte_buffer& given() const noexcept { return given_; }
    [[nodiscard]] const member_info& self() const noexcept { return self_; }

private:
    group_client() = default;
    task<void> read_all();
    void handle(const net::frame& f);
    void lose(int rank, error why);
    [[nodiscard]] bool may_send() const noexcept;
    task<void> finish();

    member_info self_;
    int generation_ = 0;
    byte_buffer given_;
    std::shared_ptr<net::connection> link_;
    std::vector<member_info> members_;
    std::map<std::string, std::vector<byte_buffer>> gathered_;
    std::optional<error> lost_;
    bool leaving_ = false;
    bool joined_ = false;
    lost_callback on_lost_;
    wait_queue changed_;
    scope reader_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/group.ipp>
#include <skein/spmd/detail/group_client.ipp>
#endif
