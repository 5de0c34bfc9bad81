// SPDX-License-Identifier: Apache-2.0
#pragma once
// One implementation behind every strategy of several ranks: which groups a unit's gradients are
// reduced over, where its parameters are, and when both travel.
//
//     DDP      shard group: none replicas: all ranks gradients summed, everybody updates all
//     Zero1    shard group: all         replicas: none         everybody updates its part
//     Zero2    the same, and of the reduced gradients everybody keeps its part only
//     FSDP     the same, and of the parameters too, between uses
//     Hybrid   shard group: the host    replicas: one rank of each host
//
// Units leave for reduction in one fixed order, from the last to the first, whatever a rank leaves
// unused; for gathering in the order of the forward pass and then backwards, on a group of their
// own. When all ranks of the shard group are on one host, the parameters are one memory for all of
// them: nothing is gathered, and nothing is dropped, because there is one copy only.

#include <skein/dist/comm_thread.hpp>
#include <skein/dist/group_memory.hpp>
#include <skein/train/build.hpp>
#include <skein/train/context.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/wrap.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace skein::train::detail {

/// What tells the strategies apart.
struct shard_policy {
    std::string_view name;
    bool shard_states = false;     ///< ZeRO-1: each rank updates a part
    bool shard_gradients = false;  ///< ZeRO-2: and keeps its part of the gradients only
    bool shard_parameters = false; ///< ZeRO-3: and of the parameters
    bool inside_hosts = false;     ///< sharded inside each host, replicated between them
    bool reshard_after_forward = true;
    int prefetch = 1; ///< units gathered ahead of the one in use
    precision_policy precision{};
};

class shard_sums;
class unit_gatherer;

/// The part of every block that this rank will own; collective.
[[nodiscard]] build_plan plan_build(const context& ctx, const shard_policy& policy);

/// Elements of each sharding rank, for the collectives.
[[nodiscard]] std::vector<std::size_t> counts_of(const flat_unit& unit);
/// Where a tensor's elements are, for the collectives.
[[nodiscard]] dist::device place_of(const at::Tensor& tensor);
/// A flat tensor, or a part of one, for the collectives.
[[nodiscard]] dist::buffer_view view_of_flat(const at::Tensor& flat);
/// Starts to gather a unit in its place: its range of `flat`, which is laid out as the parameters.
[[nodiscard]] dist::ticket gather_unit(dist::comm_thread& comm, const at::Tensor& flat,
                                       const flat_unit& unit, dist::collective_tag tag);

/// The groups of one strategy; null where there is nobody else.
struct shard_groups {
    shard_groups(const context& ctx, const shard_policy& policy);

    /// A further communicator of the ranks of `shard`, which is not null.
    [[nodiscard]] std::unique_ptr<dist::comm_thread> another(const context& ctx) const;
    /// Other ranks own the same parts, and the first of them saves them.
    [[nodiscard]] bool is_saved_elsewhere() const noexcept;
    /// The replica whose host is that of the first rank of the world.
    [[nodiscard]] int first_replica() const;

    dist::comm_thread* world = nullptr;
    dist::comm_thread* shard = nullptr;
    dist::comm_thread* replicas = nullptr;

    void abort(const error& why) const noexcept;
    void drain() const noexcept;

private:
    int host_ = -1; // its number, for sharding inside hosts
    std::unique_ptr<dist::comm_thread> own_shard_, own_replicas_;
};

class sharded_parallel {
public:
    sharded_parallel(const context& ctx, torch::nn::Module& module, const shard_policy& policy,
                     const plan_function& plan);
    sharded_parallel(const sharded_parallel&) = delete;
    sharded_parallel& operator=(const sharded_parallel&) = delete;
    ~sharded_parallel();

    [[nodiscard]] flat_store& store() noexcept { return *store_; }
    void begin_step();
    /// With the gradients of a step kept whole, only the last micro-batch communicates; with
    /// sharded gradients each does.
    void begin_micro(bool last);
    void finish_backward();
    [[nodiscard]] double squared_norm(double mine);
    void publish();
    /// Rank 0's buffers (running statistics) on every rank. Also at the beginning of every step, as
    /// torch does: how often a run evaluates then changes nothing. What was written to the module
    /// is in the masters.
    void sync_buffers();
    void begin_evaluation();
    void end_evaluation();
    void abort(const error& why) noexcept;
    void finish();
    /// Without shards any number of the ranks may go on; with shards as many of a group as before,
    /// each with the part that it has.
    void rebind();

    /// A gradient that comes in pieces is whole before it comes to its place.
    ///   result  units share places, which are empty behind each pass
    bool wait_for_pieces();

    [[nodiscard]] std::size_t buckets() const noexcept;
    /// Units of the last step whose exchange began before the backward pass had ended.
    [[nodiscard]] std::size_t overlapped() const noexcept { return overlapped_; }
    /// The ranks of a shard group see one copy of the parameters.
    [[nodiscard]] bool one_copy() const noexcept { return one_copy_; }

protected:
    /// Between steps, of a strategy that shards nothing: from now on each micro-batch is one of so
    /// many logical shards, and their gradients are added by one tree for any number of ranks
    /// (detail/shard_sums.hpp).
    ///   errors  not_supported for gradients that are not summed in float32
    void sum_by_shards(int shards);

private:
    struct unit_state {
        std::size_t missing = 0;          ///< gradients that have not come in this micro-batch
        bool launched = false;            ///< on its way, in this micro-batch
        bool taken = false;               ///< and its result is where the optimizer finds it
        bool kept = false;                ///< the owned gradients hold micro-batches of this step
        dist::ticket reduced, replicated; // the second: under way once it has crossed
    };
    enum class phase : std::uint8_t { idle, passing, reducing };

    void build(torch::nn::Module& module, const plan_function& plan);
    void find_marks(torch::nn::Module& module);
    void make_store(torch::nn::Module& module, const plan_function& plan);
    [[nodiscard]] std::function<at::Tensor(std::int64_t, at::ScalarType)> gradient_memory() const;
    void agree_on_origin();
    void give_up_pass() noexcept;
    void spread_values();
    void spread_buffers();
    void broadcast(const at::Tensor& tensor);
    void ready(std::size_t segment);
    [[nodiscard]] bool make_place(std::size_t unit, bool wait);
    [[nodiscard]] bool has_place(std::size_t segment);
    void send(std::size_t unit);
    void launch(std::size_t unit);
    void cross(std::size_t wait_until);
    void take(std::size_t unit);
    void end_micro();
    void gather_all(bool masters);
    void return_masters();
    [[nodiscard]] bool reduces() const noexcept {
        return groups_->shard != nullptr || groups_->replicas != nullptr;
    }
    [[nodiscard]] dist::collective_tag tag(std::size_t unit, dist::tag_phase phase) const noexcept;

    const context* ctx_;
    torch::nn::Module* module_;
    shard_policy policy_;
    std::unique_ptr<shard_groups> groups_;
    int shards_ = 1, shard_ = 0; // ranks that everything is cut between, and this one's number
    std::uint64_t origin_ = 0;   // the same on the ranks that were there when this was made
    std::unique_ptr<flat_store> store_;
    std::unique_ptr<shard_sums> sums_;        // of logical shards
    std::shared_ptr<unit_gatherer> gatherer_; // when parameters are gathered unit by unit
    bool one_copy_ = false, has_buffers_ = false, finished_ = false;
    bool takes_turns_ = false; // units share places for their gradients

    std::vector<unit_state> states_;
    std::vector<std::shared_ptr<const unit_mark>> marks_; // of the module, each once
    std::vector<const unit_mark*> mark_of_; // by segment: the innermost block it is in, or none
    std::vector<char> ready_;               // by segment: its hook has fired in this pass
    std::vector<std::size_t> turn_; // by unit: who has its place next, in a backward pass before it
    std::size_t left_ = 0;          // units that have not left for reduction, in this pass
    std::size_t crossed_ = 0;       // units that have not left for the replicas
    phase phase_ = phase::idle;
    std::size_t overlapped_ = 0;
    std::uint64_t step_ = 0;
};

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/sharded.ipp>
#endif
