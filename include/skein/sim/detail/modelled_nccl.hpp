// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL over modelled devices: communicators, groups of calls, collectives that run when all ranks
// have come.
//
// As the library does: a call on a communicator that is not blocking may come onto its stream
// later; unlike calls are not refused, they hang or give wrong numbers; who aborts the
// communicators of a process one by one waits for ever (here: a complaint).

#include <skein/dist/nccl.hpp>
#include <skein/sim/detail/modelled_streams.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace skein::sim::detail {

class modelled_nccl;
struct modelled_clique;
struct modelled_comm;

enum class nccl_kind { all_reduce, reduce_scatter, reduce, broadcast, all_gather, send, recv };

[[nodiscard]] const char* to_string(nccl_kind kind) noexcept;

/// One call as it was made.
struct nccl_call {
    nccl_kind kind = nccl_kind::all_reduce;
    const void* in = nullptr;
    void* out = nullptr;
    std::size_t count = 0;
    dist::nccl_type type = dist::nccl_type::f32;
    dist::nccl_op op = dist::nccl_op::sum;
    int peer = 0;             ///< root, or whom a message is with
    std::uint64_t number = 0; ///< of the communicator's collectives, or of the messages to the peer

    [[nodiscard]] std::size_t in_bytes(int ranks, int rank) const;
    [[nodiscard]] std::size_t out_bytes(int ranks, int rank) const;
};

/// The calls of one group on one communicator and stream: one piece of work.
class nccl_unit final : public joint_work {
public:
    nccl_unit(modelled_nccl& model, std::shared_ptr<modelled_comm> comm, int stream)
        : of(std::move(comm)), on(stream), model_(model) {}

    [[nodiscard]] bool can_run() override;
    void run() override;

    std::shared_ptr<modelled_comm> of;
    int on;
    std::vector<nccl_call> calls;
    bool is_aborted = false, is_done = false;

private:
    modelled_nccl& model_;
};

/// One rank's part of a collective or message.
struct joined_call {
    nccl_unit* unit = nullptr; ///< null: that rank has not come
    const nccl_call* call = nullptr;
};

/// Ranks that share an id.
struct modelled_clique {
    std::vector<std::shared_ptr<modelled_comm>> ranks;
    std::map<std::uint64_t, std::vector<std::shared_ptr<nccl_unit>>> collectives;
    /// from, to, number -> who sends, who receives
    std::map<std::tuple<int, int, std::uint64_t>,
             std::pair<std::shared_ptr<nccl_unit>, std::shared_ptr<nccl_unit>>>
        messages;
    std::size_t came = 0;
    bool hangs = false; ///< unlike calls were made
};

struct modelled_comm {
    std::shared_ptr<modelled_clique> clique;
    int rank = 0, device = 0;
    bool is_blocking = true, is_aborted = false, is_finalized = false;
    dist::nccl_result state = dist::nccl_result::success;
    std::uint64_t collectives = 0;
    std::map<int, std::uint64_t> sent, received;   ///< by peer
    std::vector<std::shared_ptr<nccl_unit>> late;  ///< not yet on their streams
    std::vector<std::shared_ptr<nccl_unit>> units; ///< on them, not done
    std::string words;                             ///< of ncclGetLastError
};

/// What happens to communicators on a device, on request.
struct modelled_trouble {
    dist::nccl_result state = dist::nccl_result::success; ///< what they say from now on
    bool hangs = false;                                   ///< nothing on them ends any more
};

/// All communicators of a model. One lock around all of it is the owner's.
class modelled_nccl {
public:
    modelled_nccl(modelled_streams& streams, modelled_memory& memory, int version)
        : streams_(streams), memory_(memory), version_(version) {}
    modelled_nccl(const modelled_nccl&) = delete;
    modelled_nccl& operator=(const modelled_nccl&) = delete;
    ~modelled_nccl(); // communicators and cliques hold each other

    [[nodiscard]] int version() const noexcept { return version_; }
    void unique_id(dist::nccl_unique_id& to);
    dist::nccl_result init(dist::nccl_comm* to, int ranks, const dist::nccl_unique_id& id, int rank,
                           const dist::nccl_config& config);
    [[nodiscard]] std::shared_ptr<modelled_comm> find(dist::nccl_comm handle) const;
    dist::nccl_result finalize(dist::nccl_comm handle);
    dist::nccl_result destroy(dist::nccl_comm handle);
    dist::nccl_result abort(dist::nccl_comm handle);
    /// Asking makes what is late go on.
    dist::nccl_result ask(modelled_comm& comm);
    [[nodiscard]] static bool is_complete(const modelled_comm& comm);

    void group_start();
    dist::nccl_result group_end();
    dist::nccl_result call(dist::nccl_comm handle, dist::cuda_stream stream, nccl_call what);

    void trouble(int device, modelled_trouble what);
    [[nodiscard]] std::string last_words(dist::nccl_comm handle) const;

private:
    friend class nccl_unit;
    using units = std::vector<nccl_unit*>;
    struct open_group {
        int depth = 0;
        std::vector<std::shared_ptr<nccl_unit>> made;
        std::vector<dist::nccl_comm> aborts;
    };

    dist::nccl_result launch(std::vector<std::shared_ptr<nccl_unit>> made);
    void put_on_stream(const std::shared_ptr<nccl_unit>& unit);
    void abort_now(dist::nccl_comm handle);
    [[nodiscard]] bool others_have_work(const modelled_comm& comm) const;
    /// All that has to run together with the unit; false: somebody has not come.
    bool collect(nccl_unit& unit, units& all) const;
    void run_together(const units& all);
    /// One collective, or one message, that all its ranks have come for.
    void run_calls(const modelled_clique& clique, const std::vector<joined_call>& calls);
    [[nodiscard]] std::vector<joined_call> partners(const nccl_unit& unit,
                                                    const nccl_call& call) const;
    dist::nccl_result refuse(modelled_comm* comm, std::string why,
                             dist::nccl_result as = dist::nccl_result::invalid_argument);

    modelled_streams& streams_;
    modelled_memory& memory_;
    int version_;
    std::uint64_t ids_ = 0;
    std::uintptr_t last_comm_ = 0;
    std::map<std::string, std::shared_ptr<modelled_clique>> cliques_;
    std::map<dist::nccl_comm, std::shared_ptr<modelled_comm>> comms_;
    std::map<int, modelled_trouble> troubles_; // by device
    std::map<thread_number, open_group> groups_;
};

} // namespace skein::sim::detail

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/modelled_nccl.ipp>
#include <skein/sim/detail/modelled_nccl_calls.ipp>
#endif
