// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator for buffers of devices over one that works in the host's memory.
//
// Each collective copies what it reads from the device into pinned memory, lets the other
// communicator work there, and copies back what that wrote. So it is correct wherever that one is,
// also for ranks that share a device, and each byte crosses the bus twice. Buffers of the host go to
// the other one as they are. Never run on a GPU: docs/gpu.md.
//
//     run_config.communicator = "host";                 // over shm, ring or hierarchical
//     host_communicator comm(std::move(inner), [] { return load_cuda_runtime().value(); });

#include <skein/core/function.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/detail/pinned_lane.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace skein::dist {

/// One rank's end. The buffers of one collective are those of the host and of one device.
///   errors  besides those of the other one: not_supported: two devices in one call; timeout: a copy
///           did not end by the deadline; those of cuda_check(). After each of them the group is
///           aborted, and the task ends when no copy is in flight
class host_communicator final : public communicator {
public:
    /// open  gives CUDA's runtime; called when the first buffer of a device comes
    /// work  a stream of that device, behind whose work collectives come; null: its default one,
    ///       which LibTorch computes on
    host_communicator(std::unique_ptr<communicator> inner, std::function<cuda_runtime()> open,
                      collective_options limits = {}, cuda_stream work = nullptr);
    ~host_communicator() override;

    [[nodiscard]] int rank() const noexcept override { return inner_->rank(); }
    [[nodiscard]] int world_size() const noexcept override { return inner_->world_size(); }
    [[nodiscard]] std::string name() const override { return "host over " + inner_->name(); }
    [[nodiscard]] bool reaches(device /*where*/) const noexcept override { return true; }

    task<void> all_reduce(buffer_view io, reduce_op op) override;
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                reduce_op op) override;
    task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                buffer_view out, reduce_op op) override;
    task<void> all_gather(buffer_view in, buffer_view out) override;
    task<void> all_gather_v(buffer_view in, buffer_view out,
                            std::span<const std::size_t> counts) override;
    task<void> broadcast(buffer_view io, int root) override;
    task<void> barrier() override { return inner_->barrier(); }
    /// The other one's, which is the host's.
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) override {
        return inner_->allocate(bytes, kind);
    }
    task<void> send(buffer_view io, int to) override;
    task<void> recv(buffer_view io, int from) override;
    task<void> close() override { return inner_->close(); }
    void abort(error why) noexcept override { inner_->abort(std::move(why)); }
    void set_deadline(time_span limit) override;
    void set_tag(collective_tag tag) override { inner_->set_tag(tag); }
    [[nodiscard]] std::shared_ptr<const call_record> calls() const override {
        return inner_->calls();
    }

private:
    /// What of a collective is copied before and behind it; the buffers it works with.
    struct staging {
        std::vector<detail::pinned_part> before, after;
        detail::pinned_lane* lane = nullptr;
    };
    using call = unique_function<task<void>()>;

    [[nodiscard]] detail::pinned_lane& lane_of(std::span<const buffer_view> all);
    [[nodiscard]] staging begin(std::span<const buffer_view> all, std::byte*& next);
    /// The same elements in pinned memory, behind those before.
    [[nodiscard]] static buffer_view at(std::byte*& next, buffer_view of) noexcept;
    task<void> run(staging what, call inner);
    task<void> gather(buffer_view in, buffer_view out,
                      std::optional<std::span<const std::size_t>> counts);

    std::unique_ptr<communicator> inner_;
    const std::function<cuda_runtime()> open_;
    const cuda_stream work_;
    std::optional<cuda_runtime> cuda_;
    std::vector<std::unique_ptr<detail::pinned_lane>> lanes_; // one for each device
    duration deadline_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/host_communicator.ipp>
#endif
