// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two communicators of the same ranks as one: buffers of devices go to the first, all else to the
// second.
//
// A training exchanges both: gradients and parameters, which are on devices, and the row of a step,
// which is the host's. A communicator over NCCL carries the first, and one of the host's memory the
// second. They have one end: what fails in one aborts the other.
//
//     paired_communicator comm(std::move(nccl), std::move(shm));

#include <skein/core/task.hpp>
#include <skein/dist/communicator.hpp>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace skein::dist {

/// One rank's end. The buffers of one collective are all of devices, or all of the host.
///   errors  besides those of the two: not_supported: buffers of both in one call, which is refused
///           before anything is sent; mismatch: a collective of devices hung, and the ranks have
///           called unlike ones
class paired_communicator final : public communicator {
public:
    /// Both on one loop, with the same rank and size; at most one of them compares no calls.
    paired_communicator(std::unique_ptr<communicator> devices, std::unique_ptr<communicator> host);
    ~paired_communicator() override;

    [[nodiscard]] int rank() const noexcept override { return host_->rank(); }
    [[nodiscard]] int world_size() const noexcept override { return host_->world_size(); }
    [[nodiscard]] std::string name() const override {
        return devices_->name() + " and " + host_->name();
    }
    [[nodiscard]] bool reaches(device where) const noexcept override {
        return where.is_cpu() ? host_->reaches(where) : devices_->reaches(where);
    }

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
    /// The host's.
    task<void> barrier() override;
    /// The host's memory.
    task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) override;
    task<void> send(buffer_view io, int to) override;
    task<void> recv(buffer_view io, int from) override;
    task<void> close() override;
    void abort(error why) noexcept override;
    void set_deadline(time_span limit) override;
    void set_tag(collective_tag tag) override;
    /// Of the one that compares none.
    [[nodiscard]] std::shared_ptr<const call_record> calls() const override;

private:
    /// Whose buffers these are.
    [[nodiscard]] communicator& carrier(std::initializer_list<buffer_view> all) const;
    task<void> run(communicator& on, task<void> work);
    [[nodiscard]] task<std::optional<error>> unlike();

    const std::unique_ptr<communicator> devices_, host_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/paired_communicator.ipp>
#endif
