// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks of a program of which nobody knows yet what it is (spmd/program_kind.hpp), on this host:
// started once, and then what they say.
//
//     undecided_ranks ranks(children, how);
//     supervisor_options job;                        // drives them as any program, or as a group
//     job.places = [&](loop&, net::network&) { return ranks.places(); };
//     ... the job runs ...
//     if (ranks.are_elastic()) host(network, ranks.adopted(), ...);   // goes on with the same ones
//     auto ending = ranks.end();
//     co_await ending;
//
// States of an attempt:
//     silent    none has said a word: a supervisor sees their ends alone
//     meeting   one has said that it is a rank of a fixed number: until_met() ends, and whoever
//               asks is told where the group meets
//     elastic   one has said that it is a worker: for the job of places() all have ended well. They
//               run on, are adopted in turn by who starts children there, and whoever asks is told
//               the message of its adopter
// The first word decides, for all of the attempt; it is not taken back.

#include <skein/core/bytes.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/host_share.hpp>
#include <skein/spmd/program_kind.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::spmd {

/// What a rank is told of its job, in its environment.
struct undecided_options {
    std::string job = "job"; ///< TORCHELASTIC_RUN_ID
    int max_restarts = 0;    ///< TORCHELASTIC_MAX_RESTARTS
    /// A port of this host that nobody listens at, for MASTER_PORT of an attempt; 0: none is free.
    std::function<int()> free_port{};
    std::optional<host_share> share{}; ///< the ranks are those of this host; nothing: they are all
    bool reads_output = false;         ///< what they write is for on_started to read
    /// A rank has been started; its child lives until on_ended.
    std::function<void(int attempt, int rank, std::shared_ptr<proc::child>)> on_started{};
};

/// Lives on one loop. `on` must outlive it; end() before its end.
class undecided_ranks final : public proc::children {
public:
    undecided_ranks(proc::children& on, undecided_options options);
    ~undecided_ranks() override;

    /// Suspends until one of the attempt has said that its ranks meet.
    ///   errors  cancelled
    [[nodiscard]] task<void> until_met();
    [[nodiscard]] bool are_elastic() const noexcept { return is_elastic_; }
    [[nodiscard]] bool have_met() const noexcept { return met_.is_set(); } ///< in this attempt

    /// An attempt begins.
    [[nodiscard]] task<std::vector<proc::child_place>> reserve(int many) override;
    /// Of those that were reserved: a rank. Later: gives those that are elastic, in turn, and then
    /// others, which are told at once who they are.
    [[nodiscard]] task<std::unique_ptr<proc::child>> start(proc::child_options how) override;
    [[nodiscard]] proc::host_resources resources() override { return on_.resources(); }
    void release() override { reserved_ = 0; }

    /// Nobody listens to them any more; those that nobody has adopted are killed.
    [[nodiscard]] task<void> end();

private:
    class shared_rank;
    struct rank;
    task<std::unique_ptr<proc::child>> start_rank(int number, proc::child_options how);
    task<void> hear(std::shared_ptr<rank> from);
    void decide(program_kind kind);
    [[nodiscard]] host_share share() const;

    proc::children& on_;
    undecided_options options_;
    std::vector<std::shared_ptr<rank>> ranks_; ///< of the attempt that runs, or ran
    int master_port_ = 0;                      ///< of the attempt
    int world_size_ = 0, attempt_ = -1;
    int reserved_ = 0; ///< of the attempt, and not started yet
    bool is_elastic_ = false;
    event met_, handed_;
    scope hearing_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/undecided_ranks.ipp>
#endif
