// SPDX-License-Identifier: Apache-2.0
#pragma once
// A host as one member of a job of hosts whose ranks start again: its supervisor meets those of the
// other hosts in one world after the other, and runs its own ranks in each.
//
//     host_member me(network, how, ranks);        // ranks: this host's, as host_ranks
//     auto living = me.run();
//     const int code = co_await living;           // as that of a worker of the job
//
// States of a world:
//     forming   all hosts say what they bring, and know then which ranks they have
//     running   the ranks of this host run
//     done      they have ended with 0: the host waits for the others, and then leaves
// A rank that fails breaks the world of all hosts, a host that joins or leaves pauses it: its ranks
// are ended, and the host asks for the next one. What would only fail again ends the job.

#include <skein/core/config.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/detail/elastic_client.hpp>
#include <skein/spmd/detail/rank_ends.hpp>
#include <skein/spmd/host_share.hpp>
#include <skein/spmd/supervisor.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class network;
}

namespace skein::spmd::detail {

/// How the ranks of a host have ended in one world.
struct host_end {
    std::optional<error> failure;
    bool is_lasting = false; ///< it would only come again
    bool is_echo = false;    ///< it may follow from what another host is about to say
    int code = 0;            ///< of the rank that failed, as a shell says it
    bool is_elastic = false; ///< nothing has ended: they are workers that others join and leave
};

/// The ranks of one host, started anew for each world.
class host_ranks {
public:
    host_ranks() = default;
    host_ranks(const host_ranks&) = delete;
    host_ranks& operator=(const host_ranks&) = delete;
    virtual ~host_ranks() = default;

    [[nodiscard]] virtual host_offer offer() = 0;
    /// Of the first host: serves the group of this world's ranks; gives where.
    [[nodiscard]] virtual net::address serve(const host_share& of) = 0;
    /// Until all ranks of this host have ended.
    ///   failing  told once, maybe before, when it is known why they fail
    [[nodiscard]] virtual task<host_end> run(host_share of,
                                             std::function<void(const host_end&)> failing) = 0;
    /// They are asked to end, and killed after their grace.
    virtual void stop(int signal) = 0;
    /// Their world is lost.
    virtual void break_off(const error& why) = 0;
    virtual void kill() = 0;
};

struct host_member_options : job_rules {
    elastic_client_options link{};
};

/// Lives on one loop.
class host_member {
public:
    /// `via` and `ranks` must outlive it.
    host_member(net::network& via, host_member_options options, host_ranks& ranks);

    /// Gives its exit code: 0 in order, 128 and the signal by which the job was stopped, 1.
    ///   errors  cancelled: the ranks have ended
    [[nodiscard]] task<int> run();
    /// Now, with its ranks.
    void kill() { killing_.request(); }

    /// All ranks of all hosts are workers of an elastic program, and still run.
    [[nodiscard]] bool is_elastic() const noexcept { return is_elastic_; }
    /// Of the rank of this host that has failed last, if that was in the last world.
    [[nodiscard]] int code() const noexcept { return code_; }

private:
    enum class order : std::uint8_t { none, pause, stop, broken };
    using place = std::shared_ptr<elastic_place>;

    [[nodiscard]] elastic_client_options link_options();
    task<int> live();
    task<place> ask();
    task<result<host_share>> form(place in);
    task<host_share> exchange_offers(place in);
    void say_world(const elastic_place& in, const std::vector<host_offer>& offers, int ranks);
    task<host_end> attempt(host_share share);
    task<void> run_ranks(host_share share);
    task<void> watch_ranks();
    void heard_failure(const host_end& how);
    task<void> report(host_end how);
    task<std::optional<int>> judge(place in, host_end end);
    task<std::optional<int>> leave_together(place in, bool is_elastic);
    task<std::optional<std::vector<byte_buffer>>> all_done(place in, bool is_elastic);
    task<std::optional<std::vector<byte_buffer>>> until_ordered();
    [[nodiscard]] order ordered() const;

    host_member_options options_;
    host_ranks& ranks_;
    elastic_wishes wishes_;
    event news_;
    elastic_client client_;
    cancel_source killing_;

    // Of the world that runs.
    std::optional<error> broken_;
    std::optional<host_end> end_;
    scope* work_ = nullptr;
    bool is_reported_ = false;
    std::optional<result<place>> next_; ///< the one after it, where that has been asked for

    world_end last_ = world_end::none;
    failures_in_turn failures_; ///< of this host's ranks
    std::string job_;           ///< of the worlds that it was in
    int restarts_ = 0, hosts_ = 0, code_ = 0;
    bool is_elastic_ = false, is_over_ = false;
};

/// Starts this host's member, in this process, for a keeper that wants a worker.
class host_members final : public proc::children {
public:
    /// The first two must outlive it.
    host_members(net::network& via, host_ranks& ranks, host_member_options options);
    ~host_members() override;

    [[nodiscard]] task<std::unique_ptr<proc::child>> start(proc::child_options how) override;
    /// Before the destructor, after the keeper.
    [[nodiscard]] task<void> end();

    /// See host_member, of the last one.
    [[nodiscard]] bool are_elastic() const noexcept;
    [[nodiscard]] int code() const noexcept;

private:
    struct life;
    class in_process;
    static task<void> live(std::shared_ptr<life> of);

    net::network& network_;
    host_ranks& ranks_;
    host_member_options options_;
    std::shared_ptr<life> last_;
    scope lives_;
};

} // namespace skein::spmd::detail
